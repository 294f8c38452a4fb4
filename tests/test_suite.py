"""Suites: what they plan, that they resume, skip and survive, and what they leave behind."""

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nbl import config, reproduce, suite
from nbl.clock import Clock
from nbl.report import claims
from nbl.types import NblError

PAGE = """
# Two linear bandits, for the tests.
title: A small suite
paper: Nobody's.
scales:
  smoke: {horizon: 12, replicas: 3, radius: 0.5}
  default: {horizon: 20, replicas: 3, radius: 0.5}
panels:
  one:
    title: Linear
    env: linear
    set: [env.arms=4, env.dim=3]
    runs:
      ES: recipe=lin_es
      UCB a: recipe=lin_ucb algorithm.nu=$radius
    claims:
      - {paper: ES is better., better: [ES, UCB a]}
      - {paper: ES is close., close: [ES, [UCB a]], within: 5}
  cost: {title: Time, draw: times, of: one, claims: [{paper: ES is slow., measure: select, faster: [UCB a, ES]}]}
  two:
    title: Sweep
    env: linear
    set: [env.arms=4, env.dim=3]
    draw: sweep
    base: recipe=lin_ucb
    sweep: {name: nu, key: algorithm.nu, values: [0.5, 2.0]}
    scales: {default: null}
    claims: [{paper: The first is best., best: nu=0.5}]
  three:
    title: A curve
    draw: function
    function:
      _target_: nbl_callbacks.doubling.doubling_constant
      fixed: {gamma: 0.5, delta: 1.5}
      x: {factor: [1.5, 4.0]}
      curves: {first: [100, 300]}
    claims: [{lowest: 100, at: 2.618}, {sensitive: factor}]
  four: {title: Absent, env: no_such_env, optional: true, runs: {ES: recipe=lin_es}, claims: [{best: ES}]}
"""


@pytest.fixture(autouse=True)
def page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(PAGE)
    return tmp_path / "small.yaml"


def edit(page, old, new):
    assert old in page.read_text()
    page.write_text(page.read_text().replace(old, new))


def go(*arguments):
    return reproduce.main(["suite=small.yaml", "scale=smoke", "out=o", "jobs=1", *arguments])


def rows(file):
    return list(csv.DictReader(Path(file).read_text().splitlines()))


HUNDREDS = ("duels", "duels_tuning", "gcb", "logistic", "thompson", "thompson_tuning")  # of configs to compose
LONG = {(name, "paper") for name in HUNDREDS}


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        pytest.param(name, scale, marks=[pytest.mark.slow] if (name, scale) in LONG else [])
        for name in config.choices("suite")
        for scale in ("smoke", "paper")
    ],
)
def test_every_suite_plans_at_every_scale(name, scale, monkeypatch):
    """All of its recipes compose, and its claims compare runs that it has."""
    monkeypatch.setenv("NBL_DATA_DIR", "data")
    planned = suite.plan(name, scale, Path("o"))
    assert planned.panels and all(panel.title for panel in planned.panels)
    folders = [run.folder for run in suite.runs(planned.panels)]
    assert len(set(folders)) == len(folders)


def test_a_suite_leaves_a_report_with_pictures_tables_and_verdicts(capsys):
    assert go() == 0
    report = Path("o/report.md").read_text()
    for text in ("A small suite", "ES is better.", "12 rounds x 3 replicas", "figures/one.png", "95% interval"):
        assert text in report
    assert {f.name for f in Path("o/figures").iterdir()} == {"one.png", "cost.png", "two.png", "three.png"}
    assert all(f.read_bytes().startswith(b"\x89PNG") for f in Path("o/figures").iterdir())
    table = {row["algorithm"]: row for row in rows("o/tables/one.csv")}
    summary = json.loads(Path("o/runs/one/ES/summary.json").read_text())
    assert float(table["ES"]["regret_mean"]) == pytest.approx(summary["regret"]["mean"], rel=1e-5)
    assert float(table["ES"]["regret_sd"]) == pytest.approx(summary["regret"]["sd"], rel=1e-4)
    assert float(table["UCB a"]["select_ms"]) > 0 and float(table["UCB a"]["seconds"]) > 0
    assert summary["seeds"] == [0, 1, 2]  # tuning has 1000 and up
    verdicts = rows("o/claims.csv")
    assert [v["panel"] for v in verdicts] == ["one", "one", "cost", "two", "three", "three", "four"]
    es, ucb = (
        json.loads(Path(f"o/runs/one/{a}/summary.json").read_text())["regret"]["per_replica"] for a in ("ES", "UCB_a")
    )
    for found, test in zip(verdicts, (claims.better(es, ucb), claims.close(es, ucb, 5)), strict=False):
        assert found["verdict"] == test.outcome
        assert float(found["p_for"]) == pytest.approx(test.p_for, rel=1e-3)
    assert [v["verdict"] for v in verdicts if v["panel"] == "three"] == ["agreement", "agreement"]
    assert "four: Absent" in report and "Left out: it needs env=no_such_env" in report
    assert "[3/3]" in capsys.readouterr().out


def test_what_is_finished_is_skipped(capsys, monkeypatch):
    assert go() == 0
    before = Path("o/runs/one/ES/summary.json").stat().st_mtime_ns
    monkeypatch.setattr(reproduce, "play", lambda run: pytest.fail(f"{run.name} was played again"))
    assert go() == 0
    assert Path("o/runs/one/ES/summary.json").stat().st_mtime_ns == before
    assert "3 of them done" in capsys.readouterr().out


def test_another_config_is_another_run_and_the_old_one_is_kept(page):
    go("only=one")
    edit(page, "recipe=lin_es\n", "recipe=lin_es algorithm.members=3\n")
    planned = suite.plan("small.yaml", "smoke", Path("o"))
    assert [reproduce.status(run) for run in planned.panels[0].runs.values()] == ["other", "done"]
    assert go("only=one") == 0
    assert "members: 3" in Path("o/runs/one/ES/config.yaml").read_text()
    assert "members: 25" in Path("o/runs/one/ES.old1/config.yaml").read_text()


def test_a_run_of_two_panels_is_played_once():
    """`UCB a` of the first panel and nu=0.5 of the sweep are the same config."""
    planned = suite.plan("small.yaml", "smoke", Path("o"))
    one, cost, two = planned.panels[:3]
    assert one.runs["UCB a"] is two.runs["nu=0.5"] and cost.runs == one.runs
    assert len(suite.runs(planned.panels)) == 3
    assert go("only=two") == 0
    assert Path("o/runs/one/UCB_a/summary.json").exists() and not Path("o/runs/two/nu=0.5").exists()


def test_a_stopped_run_goes_on_from_its_checkpoint(monkeypatch):
    """... and plays what it would have played without the stop."""
    from nbl import train

    go("only=one")
    whole = pq.read_table("o/runs/one/ES/rounds.parquet")
    run = suite.plan("small.yaml", "smoke", Path("p")).panels[0].runs["ES"]
    assert train.run(config.compose([*run.overrides, "+trainer.max_steps=7"])) == 0
    (run.folder / reproduce.STAMP).write_text(json.dumps({"key": run.key, "done": False}))
    assert reproduce.status(run) == "begun"
    starts, original = [], train.run
    monkeypatch.setattr(train, "run", lambda config, start: starts.append(start) or original(config, start))
    outcome = reproduce.play(run)
    assert not outcome.error and starts[0].name == "round-0000007.ckpt"
    assert pq.read_table(run.folder / "rounds.parquet").equals(whole)
    assert reproduce.status(run) == "done"
    assert sum(int(float(row["rounds"])) for row in rows(run.folder / "timing.csv")) == 12


def test_a_stop_without_a_checkpoint_begins_anew():
    run = suite.plan("small.yaml", "smoke", Path("o")).panels[0].runs["ES"]
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text("half")
    (run.folder / reproduce.STAMP).write_text(json.dumps({"key": run.key, "done": False}))
    assert not reproduce.play(run).error and reproduce.status(run) == "done"


def test_a_failing_run_is_reported_and_stops_nothing(page, capsys):
    edit(page, "ES: recipe=lin_es\n", "ES: recipe=lin_es algorithm.lam=-1\n")
    assert go("only=one") == 1
    said = capsys.readouterr().err
    assert "Failed: one/ES" in said and "lam" in said and "log.txt" in said
    report = Path("o/report.md").read_text()
    assert "no results of ES" in report and "UCB a |" in report and "**inconclusive**" in report
    edit(page, "algorithm.lam=-1", "algorithm.lam=1")
    assert go("only=one") == 0


def test_two_processes_play_the_same_as_one():
    assert go("only=one") == 0
    assert reproduce.main(["suite=small.yaml", "scale=smoke", "out=p", "jobs=2", "only=one"]) == 0
    for label in ("ES", "UCB_a"):
        one, two = (pq.read_table(f"{out}/runs/one/{label}/rounds.parquet") for out in "op")
        assert one.equals(two)


def test_a_folder_that_cannot_be_written_to_is_said_in_a_line(capsys):
    assert go("only=one", "out=small.yaml/inside") == 2
    assert "small.yaml/inside" in (said := capsys.readouterr().err) and "out=" in said and "Traceback" not in said


@pytest.mark.slow
def test_a_process_that_dies_takes_no_other_run_with_it(page, capsys):
    edit(page, "ES: recipe=lin_es\n", "ES: recipe=lin_es +callbacks.end={_target_:os._exit,status:3}\n")
    assert reproduce.main(["suite=small.yaml", "scale=smoke", "out=o", "jobs=2"]) == 1
    assert "Failed: one/ES: its process died" in capsys.readouterr().err
    states = {r.name: reproduce.status(r) for r in suite.runs(suite.plan("small.yaml", "smoke", Path("o")).panels)}
    assert states == {"one/ES": "begun", "one/UCB a": "done", "two/nu=2.0": "done"}


def test_a_report_of_one_panel_keeps_the_others_that_are_there():
    go("only=two")
    go("only=one")
    report = Path("o/report.md").read_text()
    assert "## one" in report and "## two" in report


def test_alone_it_lists_the_suites(capsys):
    assert reproduce.main([]) == 0
    assert "ensemble" in capsys.readouterr().out


def test_a_dry_run_plays_nothing(capsys):
    assert go("--dry-run") == 0
    said = capsys.readouterr().out
    assert "3 runs" in said and "recipe=lin_ucb algorithm.nu=0.5" in said and "the run of one/UCB a" in said
    assert not Path("o").exists()


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        ("suite=ensembel", "ensemble"),
        ("suite=small.yaml scale=smoke only=tow", "two"),
        ("suite=small.yaml scale=smok", "smoke"),
        ("suit=ensemble", "suite"),
        ("scale=smoke", "Which suite"),
        ("suite=small.yaml jobs=0", "at least 1"),
        ("suite=small.yaml scale=default only=two", "one"),  # left out at this scale
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(arguments, near, capsys):
    assert reproduce.main(arguments.split()) == 2
    assert near in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("draw: sweep", "draw: sweeep", "sweep"),
        ("better: [ES, UCB a]", "better: [ES, UCB b]", "UCB a"),
        ("better: [ES, UCB a]", "beter: [ES, UCB a]", "better"),
        ("better: [ES, UCB a]", "better: ES", "compares two"),
        (", within: 5", "", "within"),
        ("measure: select", "measure: selection", "select"),
        ("recipe=lin_es\n", "recipe=lin_ess\n", "lin_es"),
        ("$radius", "$radios", "radios"),
        ("of: one", "of: won", "one"),
        ("title: Linear", "titel: Linear", "title"),
    ],
)
def test_a_page_with_a_slip_says_where(page, old, new, match):
    edit(page, old, new)
    with pytest.raises(NblError, match=match):
        suite.plan("small.yaml", "smoke", Path("o"))


def test_the_digest_is_of_the_problem_only():
    base = ["recipe=lin_es", "horizon=10"]
    same = suite.digest(config.compose([*base, "out=x", "logger=none", "threads=1", "callbacks.progress=null"]))
    assert suite.digest(config.compose(base)) == same
    assert suite.digest(config.compose([*base, "seed=1"])) != same
    assert suite.digest(config.compose([*base, "algorithm.nu=0.1"])) != same
    assert suite.digest(config.compose([*base, "+callbacks=doubling"])) != same


def test_the_clock_counts_every_round_and_lets_go_of_the_module():
    import nbl
    from nbl.algorithms import LinES
    from nbl.envs import Linear

    module, clock = LinES(dim=3, arms=4, replicas=2), Clock("timing.csv", blocks=5)
    nbl.fit(module, Linear(arms=4, dim=3, replicas=2), horizon=22, callbacks=[clock])
    found = rows("timing.csv")
    assert [int(float(row["rounds"])) for row in found] == [4, 4, 4, 4, 4, 2]
    assert all(float(row["select_seconds"]) > 0 and float(row["update_seconds"]) > 0 for row in found)
    assert not {"act", "observe", "learn"} & set(vars(module))


def test_the_clock_changes_nothing():
    import nbl
    from nbl.algorithms import LinES
    from nbl.envs import Linear

    arms = []
    for callbacks in ([], [Clock("timing.csv")]):
        environment = Linear(arms=4, dim=3, replicas=2)
        arms.append(nbl.fit(LinES(dim=3, arms=4, replicas=2), environment, horizon=15, callbacks=callbacks).arm)
    assert arms[0].equal(arms[1])


TABLES = """
# Tables over panels, and a sweep of two algorithms.
title: Tables
scales:
  smoke: {horizon: 12, replicas: 3, values: [1, 6]}
  default: {horizon: 20, replicas: 3}
panels:
  a: {title: Four arms, env: linear, set: [env.arms=4, env.dim=3], runs: {ES: recipe=lin_es, UCB: recipe=lin_ucb}}
  b: {title: Five arms, env: linear, set: [env.arms=5, env.dim=3], runs: {ES: recipe=lin_es, UCB: recipe=lin_ucb}}
  c: {title: Later, env: linear, runs: {ES: recipe=lin_es}, scales: {smoke: null}}
  d: {title: Absent, env: none, optional: true, runs: {ES: recipe=lin_es}}
  totals: {title: Totals, draw: totals, over: [a, b, c, d]}
  wins: {title: Wins, draw: wins, over: [a, b, c, d], level: 0.1, correction: holm}
  delay:
    title: Delay
    env: linear
    set: [env.arms=4, env.dim=3, +callbacks=delay, callbacks.delay.law=batch]
    draw: sweep
    bases: {ES: recipe=lin_es, UCB: recipe=lin_ucb}
    sweep: {name: batch, key: callbacks.delay.rounds, values: [1, 2, 3]}
    claims: [{paper: ES suffers less., grows_less: [ES, UCB]}]
"""


def test_tables_over_panels_and_sweeps_of_several(page):
    """Total regret is the summaries', wins are those of the paired tests, and growth is tested replica by replica."""
    from nbl.report import compare

    page.write_text(TABLES)
    assert go() == 0
    report = Path("o/report.md").read_text()
    finals = {
        panel: {
            a: json.loads(Path(f"o/runs/{panel}/{a}/summary.json").read_text())["regret"]["per_replica"]
            for a in ("ES", "UCB")
        }
        for panel in "ab"
    }
    totals = {row["algorithm"]: row for row in rows("o/tables/totals.csv")}
    assert list(totals["ES"]) == ["algorithm", "Four arms", "Five arms"]
    mean = sum(finals["a"]["ES"]) / 3
    assert totals["ES"]["Four arms"].strip("*").startswith(f"{mean:.1f} ±")
    assert sum(row["Four arms"].startswith("**") for row in totals.values()) == 1
    wins = {row["algorithm"]: row for row in rows("o/tables/wins.csv")}
    values = {a: dict(enumerate(v)) for a, v in finals["b"].items()}
    found = compare.wins(compare.pairs(values, 0.1, "holm"), ["ES", "UCB"])
    assert wins["ES"]["Five arms"] == "/".join(map(str, found["ES"]))
    assert "Holm's correction" in report and "at 0.1" in report
    assert Path("o/figures/delay.png").exists() and not Path("o/figures/wins.png").exists()
    rise = []
    for base in ("ES", "UCB"):
        one, six = (
            json.loads(Path(f"o/runs/delay/{base}_batch={n}/summary.json").read_text())["regret"]["per_replica"]
            for n in (1, 6)
        )
        rise.append([late - now for late, now in zip(six, one, strict=True)])
    (verdict,) = rows("o/claims.csv")
    assert float(verdict["p_for"]) == pytest.approx(claims.better(*rise).p_for, rel=1e-3)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("over: [a, b, c, d], level", "over: [a, z], level", "'z'"),
        ("grows_less: [ES, UCB]", "grows_less: [ES, UBC]", "UCB"),
        ("draw: wins", "draw: win", "wins"),
    ],
)
def test_slips_in_tables_are_named(page, old, new, match):
    page.write_text(TABLES)
    edit(page, old, new)
    with pytest.raises(NblError, match=match):
        suite.plan("small.yaml", "smoke", Path("o"))


def test_a_grid_is_searched_on_its_own_seeds_and_says_what_it_cost(page):
    """Axes as written or from the scale; the best point by its mean; a heat map, and a line with the cost."""
    page.write_text(
        """
title: A grid
scales: {smoke: {horizon: 12, replicas: 2, lams: [1.0, 5.0]}}
panels:
  search:
    title: Search
    env: linear
    set: [env.arms=4, env.dim=3]
    draw: grid
    seed: 1000
    base: recipe=lin_ucb
    grid: {algorithm.nu: [0.1, 1.0, 3.0], algorithm.lam: $lams}
"""
    )
    assert go() == 0
    table = rows("o/tables/search.csv")
    assert [row["algorithm"] for row in table][:2] == ["nu=0.1 lam=1.0", "nu=0.1 lam=5.0"] and len(table) == 6
    best = min(table, key=lambda row: float(row["regret_mean"]))["algorithm"]
    report = Path("o/report.md").read_text()
    assert f"Best: **{best}**. The grid of 6 took" in report and "seeds 1000 to 1001" in report
    assert "12 rounds x 2 replicas, seeds from 1000." in report
    assert Path("o/figures/search.png").read_bytes().startswith(b"\x89PNG")
    edit(page, "$lams", "$nothing")
    with pytest.raises(NblError, match="grid of algorithm"):
        suite.plan("small.yaml", "smoke", Path("o"))


def test_a_panel_without_regret_is_judged_by_reward(page, make_log, tmp_path):
    """Curves, table and claims of a log: more is better."""
    log = make_log(400)
    lines = [",".join(log), *(",".join(map(str, row)) for row in zip(*log.values(), strict=True))]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    page.write_text(
        """
title: A log
interval: 0.9
scales: {smoke: {horizon: 60, replicas: 3}}
panels:
  one:
    title: Replay
    env: logged
    set: [env.path=log.csv]
    runs: {LinUCB: recipe=lin_ucb, Uniform: recipe=uniform}
    claims: [{paper: It learns., measure: reward, better: [LinUCB, Uniform]}]
"""
    )
    assert go() == 0
    table = {row["algorithm"]: row for row in rows("o/tables/one.csv")}
    assert float(table["LinUCB"]["reward_mean"]) > float(table["Uniform"]["reward_mean"])
    assert float(table["LinUCB"]["a_round"]) == pytest.approx(float(table["LinUCB"]["reward_mean"]) / 60)
    (verdict,) = rows("o/claims.csv")
    assert verdict["verdict"] == "agreement" and verdict["test"] == "reward of LinUCB above that of Uniform"
