"""The comparison as one HTML file that needs nothing else: curves to zoom, hover and toggle, tables, configs.

Plotly's script is written into the file (5 MB), so that it opens anywhere, without a network, for as long as browsers
read HTML.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from nbl.report import compare
from nbl.report.runs import Problem
from nbl.report.tables import Compared, cells

_POINTS = 300  # on a curve, and as many again by equal steps of log t
_COLOURS = (
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#9467bd",
    "#ff7f0e",
    "#8c564b",
    "#e377c2",
    "#17becf",
    "#7f7f7f",
    "#bcbd22",
)
_DASHES = ("solid", "dash", "dot", "dashdot")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .7em; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { cursor: pointer; border-bottom: 2px solid #888; } tr.best td:first-child { font-weight: bold; }
.wide { overflow-x: auto; } .curves { height: 520px; } .note { color: #666; }
pre { background: #f6f6f6; padding: 1em; overflow: auto; }
"""
_SCRIPT = """
function axis(id, name, kind) { Plotly.relayout(id, {[name + '.type']: kind, [name + '.autorange']: true}); }
function every(id, on) { Plotly.restyle(id, {visible: on ? true : 'legendonly'}); }
function order(head) {
  const body = head.closest('table').tBodies[0], at = head.cellIndex, down = head.dataset.down !== 'true';
  const key = row => { const text = row.cells[at].textContent, value = parseFloat(text.replace('< ', ''));
                       return isNaN(value) ? text : value; };
  const rows = [...body.rows].sort((a, b) => { const x = key(a), y = key(b); return (x > y) - (x < y); });
  head.dataset.down = down;
  for (const row of down ? rows : rows.reverse()) body.appendChild(row);
}
for (const head of document.querySelectorAll('th')) head.addEventListener('click', () => order(head));
for (const [id, figure] of Object.entries(JSON.parse(document.getElementById('figures').textContent)))
  Plotly.newPlot(id, figure.data, figure.layout, {responsive: true, displaylogo: false});
"""


def page(title: str, about: Sequence[str], compared: Sequence[Compared]) -> str:
    """The whole file."""
    from plotly.offline import get_plotlyjs

    figures = {f"curves{i}": figure(part.problem) for i, part in enumerate(compared)}
    data = json.dumps(figures, allow_nan=False).replace("<", "\\u003c")
    body = [f"<h1>{html.escape(title)}</h1>", *(f"<p>{html.escape(text)}</p>" for text in about)]
    if len(compared) > 1:
        links = (f'<a href="#p{i}">{html.escape(part.problem.name)}</a>' for i, part in enumerate(compared))
        body.append(f"<p>{' · '.join(links)}</p>")
    for i, part in enumerate(compared):
        body += _section(i, part)
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>",
            *body,
            f'<script type="application/json" id="figures">{data}</script>',
            f"<script>{_SCRIPT}</script></body></html>",
        ]
    )


def figure(problem: Problem) -> dict[str, Any]:
    """Mean curves with their bands, as Plotly takes them. A click in the legend takes line and band together."""
    data: list[dict[str, Any]] = []
    at = _rounds(problem.rounds)
    x = (at + 1).tolist()
    for i, entry in enumerate(problem.entries):
        colour, curves = _COLOURS[i % len(_COLOURS)], entry.of(problem.seeds[entry.label])[:, at]
        group = {"legendgroup": str(i), "x": x, "name": entry.label, "mode": "lines"}
        if len(curves) > 1:
            low, high = compare.band(curves)
            edge = {**group, "showlegend": False, "hoverinfo": "skip", "line": {"width": 0, "color": colour}}
            data.append({**edge, "y": low.tolist()})
            data.append({**edge, "y": high.tolist(), "fill": "tonexty", "fillcolor": f"{colour}26"})
        line = {"color": colour, "width": 2, "dash": _DASHES[i // len(_COLOURS) % len(_DASHES)]}
        data.append({**group, "y": curves.mean(0).tolist(), "line": line, "hovertemplate": "%{y:.1f}"})
    layout = {
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {"title": {"text": f"cumulative {problem.measure}, mean and 95% band"}, "rangemode": "tozero"},
        "hovermode": "x unified",
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.18},
        "margin": {"t": 20, "r": 20},
        "template": {"layout": {"plot_bgcolor": "#fafafa"}},
    }
    return {"data": data, "layout": layout}


def _rounds(total: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rounds to draw, evenly spaced on either axis."""
    even = np.linspace(0, total - 1, min(total, _POINTS))
    return np.unique(np.concatenate([even, np.geomspace(1, total, min(total, _POINTS)) - 1]).round().astype(np.int64))


def _section(index: int, compared: Compared) -> list[str]:
    problem, plot = compared.problem, f"curves{index}"
    heads, rows, pair_heads, pairs = cells(compared)
    buttons = []
    for name, words in (("xaxis", "rounds"), ("yaxis", problem.measure)):
        for kind in ("linear", "log"):
            buttons.append((f"axis('{plot}', '{name}', '{kind}')", f"{kind} {words}"))
    buttons += [(f"every('{plot}', true)", "show all"), (f"every('{plot}', false)", "hide all")]
    text = [f'<h2 id="p{index}">{html.escape(problem.name)}</h2>']
    text += [f'<p class="note">{html.escape(note)}</p>' for note in problem.notes]
    text.append("<p>" + " ".join(f'<button onclick="{call}">{html.escape(words)}</button>' for call, words in buttons))
    text.append(
        "Drag to zoom, double-click to go back, click in the legend to hide, double-click there to show one.</p>"
    )
    text.append(f'<div class="curves" id="{plot}"></div>')
    text += _table(heads, rows, [row["best"] for row in compared.summary])
    if pairs:
        text += [
            f"<details open><summary>Every two of them ({len(pairs)})</summary>",
            *_table(pair_heads, pairs),
            "</details>",
        ]
    for entry in problem.entries:
        for run in entry.runs:
            versions = ", ".join(f"{k} {v}" for k, v in (run.summary.get("versions") or {}).items())
            speed, memory = run.summary.get("rounds_per_second") or 0, run.summary.get("peak_memory_mb") or 0
            seconds = run.summary.get("wall_seconds") or 0
            line = f"{seconds:.0f} s, {speed:.0f} rounds/s, {memory:.0f} MB; {versions}"
            head = f"{entry.label}: {os.path.relpath(run.folder)}, seeds {run.seeds[0]} to {run.seeds[-1]}"
            config = OmegaConf.to_yaml(OmegaConf.create(run.config))
            text.append(f"<details><summary>{html.escape(head)}</summary><p>{html.escape(line)}</p>")
            text.append(f"<pre>{html.escape(config)}</pre></details>")
    return text


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], best: Sequence[bool] = ()) -> list[str]:
    text = ['<div class="wide"><table><thead><tr>' + "".join(f"<th>{html.escape(h)}</th>" for h in heads)]
    text.append("</tr></thead><tbody>")
    for i, row in enumerate(rows):
        mark = ' class="best"' if i < len(best) and best[i] else ""
        text.append(f"<tr{mark}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>")
    return [*text, "</tbody></table></div>"]
