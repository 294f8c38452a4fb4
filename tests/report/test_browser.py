"""report.html in a real browser: it draws without a network, and what can be clicked does what it says.

Needs playwright (in the dev extra) and a Chromium or Chrome on the machine (`make browser`); skipped without.
"""

import shutil
from pathlib import Path

import pytest

from nbl.report.command import main

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: make browser")


@pytest.fixture
def opened(leave):
    """The page of two problems, and what went wrong while it was open."""
    for name, rate in (("lin_ucb", 0.2), ("lin_ts", 0.5), ("</script><b>", 0.6)):
        leave(f"runs/{rate}", name, rate=rate)
    leave("runs/other", "lin_ucb", env="zhou_h1", seeds=[3])
    assert main(["runs"]) == 0
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page, wrong = browser.new_page(viewport={"width": 1200, "height": 1400}), []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("request", lambda r: wrong.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None)
        page.context.set_offline(True)
        page.goto(Path("report/report.html").resolve().as_uri())
        page.wait_for_selector("#curves1 .legend")
        yield page
        assert wrong == []  # no error, and nothing was asked of the network
        browser.close()


def lines(page, shown=True):
    """Names of the curves that are (not) drawn."""
    return page.evaluate(
        "shown => document.getElementById('curves0').data.filter(t => t.showlegend !== false)"
        ".filter(t => (t.visible !== 'legendonly') === shown).map(t => t.name)",
        shown,
    )


def span(page, axis="xaxis"):
    return page.evaluate("axis => document.getElementById('curves0')._fullLayout[axis].range", axis)


def test_it_is_drawn_and_can_be_used(opened):
    page = opened
    assert sorted(lines(page)) == ["</script><b>", "lin_ts", "lin_ucb"]
    assert page.locator("#curves0 .scatterlayer .trace").count() == 9  # a line and two edges of a band each
    assert page.locator("#curves1 .scatterlayer .trace").count() == 1  # one replica has no band

    # hover: the values at a round
    plot = page.locator("#curves0 .nsewdrag").first
    plot.hover(position={"x": 500, "y": 150})
    page.wait_for_selector("#curves0 .hoverlayer .legendtext")
    hovered = " ".join(page.locator("#curves0 .hoverlayer .legendtext").all_text_contents())
    assert "lin_ucb" in hovered and "lin_ts" in hovered

    # zoom by dragging, back by double-click
    whole, box = span(page), plot.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 250, steps=8)
    page.mouse.up()
    zoomed = span(page)
    assert zoomed[1] - zoomed[0] < 0.6 * (whole[1] - whole[0])
    plot.dblclick(position={"x": 300, "y": 150})
    page.wait_for_function(
        "w => Math.abs(document.getElementById('curves0')._fullLayout.xaxis.range[1] - w) < 1e-6", arg=whole[1]
    )

    # log axes and back
    for button, axis in (("log rounds", "xaxis"), ("log regret", "yaxis")):
        page.locator(f"button:has-text('{button}')").first.click()
        assert page.evaluate("a => document.getElementById('curves0')._fullLayout[a].type", axis) == "log"
    page.locator("button:has-text('linear regret')").first.click()
    assert page.evaluate("document.getElementById('curves0')._fullLayout.yaxis.type") == "linear"

    # toggle an algorithm: line and band go together
    first = page.locator("#curves0 .legend .legendtoggle").first
    first.click()
    page.wait_for_function("document.querySelectorAll('#curves0 .scatterlayer .trace').length === 6")
    assert len(lines(page)) == 2
    page.locator("button:has-text('hide all')").first.click()
    assert lines(page) == []
    page.locator("button:has-text('show all')").first.click()
    assert len(lines(page)) == 3

    # tables: sorted by a click; labels are text, never markup
    table = page.locator("table").first
    assert table.locator("tbody tr").count() == 3 and page.locator("td b").count() == 0
    names = table.locator("tbody td:first-child")
    assert names.first.text_content() == "lin_ucb"
    heading = table.locator("th:has-text('mean')")
    heading.click()
    heading.click()
    assert names.last.text_content() == "lin_ucb"

    # configs and environment
    config = page.locator("details:has-text('lin_ucb: runs/0.2')").first
    assert not config.locator("pre").is_visible()
    config.locator("summary").click()
    assert "nu: 1.0" in config.locator("pre").text_content() and "torch 2" in config.text_content()
