"""What a suite leaves behind: report.md with the pictures, the tables and what the paper claims; tables also as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nbl import results
from nbl.metrics import summarise
from nbl.report import claims, figures, over
from nbl.suite import TESTS, Panel, Run, Suite, labels, runs

Array = NDArray[np.float64]
_REWARD = ("algorithm", "reward_mean", "reward_sd", "ci95_low", "ci95_high", "rounds", "a_round", "seconds")
_TABLE = ("algorithm", "regret_mean", "regret_sd", "ci95_low", "ci95_high", "seconds", "select_ms", "update_ms")
_TIMED = (
    "Seconds are process time of the algorithm (`act`, `observe`, `learn`) in the whole run, milliseconds the same for "
    "one round, all replicas together, one thread; the environment, logging and checkpoints are not counted."
)


@dataclass(frozen=True)
class Played:
    """A finished run, as a report reads it. `regret` and `reward` are (R, T), cumulative, regret NaN where it is not
    known; times are seconds a round, by block.
    """

    seeds: tuple[int, ...]
    regret: Array
    reward: Array
    select: Array
    update: Array
    seconds: float

    @property
    def what(self) -> str:
        """What it is judged by: regret, or reward where a log does not tell regret."""
        return "reward" if np.isnan(self.regret).all() else "regret"

    @property
    def curve(self) -> Array:
        return self.reward if self.what == "reward" else self.regret

    def measure(self, name: str) -> Array:
        """One number a replica (regret; reward with a minus, as lower is better), or one a block of rounds (select,
        update, round).
        """
        if name == "reward":
            return -self.reward[:, -1]
        if name == "regret":
            return self.regret[:, -1]
        return self.select + self.update if name == "round" else self.select if name == "select" else self.update


@dataclass(frozen=True)
class Line:
    """A claim and what became of it."""

    panel: str
    paper: str
    test: str
    verdict: claims.Verdict
    note: str = ""


def write(out: Path, suite: Suite, panels: Sequence[Panel], errors: Mapping[str, str], seconds: float) -> list[Line]:
    """Write report.md, claims.csv, tables/*.csv and figures/*.png; returns the claims with their verdicts.

    Args:
        out: the suite's folder.
        suite: the page at its scale.
        panels: those to report on.
        errors: of the runs that failed, by key.
        seconds: this call has taken, for the record.
    """
    lines: list[Line] = []
    body: list[str] = []
    played = {run.key: one for run in runs(panels) if (one := load(run)) is not None}
    for panel in panels:
        found = {label: played[run.key] for label, run in panel.runs.items() if run.key in played}
        lines += (judged := judge(panel, found))
        body += _section(out, panel, found, judged, errors, suite.interval)
    results.write_text(out / "claims.csv", _claims_csv(lines))
    results.write_text(out / "report.md", "\n".join([*_head(suite, panels, played, lines, seconds), *body]) + "\n")
    return lines


def count(lines: Sequence[Line]) -> dict[str, int]:
    found = Counter(line.verdict.outcome for line in lines)
    order = (claims.AGREEMENT, claims.DISAGREEMENT, claims.INCONCLUSIVE)
    return {name: found[name] for name in order if found[name]}


def load(run: Run) -> Played | None:
    """What a run left, or None if it is not finished."""
    import pyarrow.parquet as pq

    try:
        stamp = json.loads((run.folder / "suite.json").read_text())
        if not stamp["done"] or stamp["key"] != run.key:
            return None
        summary = json.loads((run.folder / "summary.json").read_text())
    except (OSError, ValueError, KeyError):
        return None
    seeds = tuple(summary["seeds"])
    table = pq.read_table(run.folder / "rounds.parquet", columns=["regret", "reward"])
    regret, reward = (  # a row a replica and round, replica by replica
        table[name].to_numpy().astype(np.float64).reshape(len(seeds), -1).cumsum(1) for name in ("regret", "reward")
    )
    timing = np.loadtxt(run.folder / "timing.csv", delimiter=",", skiprows=1, ndmin=2)
    rounds, select, update = timing[:, 1], timing[:, 2], timing[:, 3]
    return Played(seeds, regret, reward, select / rounds, update / rounds, float((select + update).sum()))


def judge(panel: Panel, found: Mapping[str, Played]) -> list[Line]:
    """The verdict on each claim of the panel."""
    return [
        Line(panel.name, claim.get("paper", ""), _words(claim), _verdict(panel, claim, found), claim.get("note", ""))
        for claim in panel.claims
    ]


def _verdict(panel: Panel, claim: dict[str, Any], found: Mapping[str, Played]) -> claims.Verdict:
    test = next(test for test in TESTS if test in claim)
    if panel.missing:
        return claims.Verdict(1.0, 1.0, f"not played: {panel.missing}")
    if test in ("lowest", "sensitive", "slope"):
        x, curves = _evaluate(panel)
        if test == "sensitive":
            return claims.sensitive([list(y) for y in curves.values()])
        if test == "slope":
            named = claim["slope"] if isinstance(claim["slope"], list) else [claim["slope"]]
            allowed = {key: claim[key] for key in ("within", "bound") if key in claim}
            return claims.every({str(c): claims.slope(x, curves[str(c)], claim["at"], **allowed) for c in named})
        return claims.lowest(x, curves[str(claim["lowest"])], claim["at"], claim.get("within", 0.05))
    if test == "grows_less":
        return over.growth(panel, claim["grows_less"], found)
    named = labels(claim, panel.runs)
    if missing := [label for label in named if label not in found]:
        return claims.Verdict(1.0, 1.0, f"no results of {', '.join(missing)}")
    if len({found[label].seeds for label in named}) > 1:
        return claims.Verdict(1.0, 1.0, "the runs have different seeds: there are no pairs")
    if test == "sublinear":
        return claims.every({label: claims.sublinear(found[label].regret) for label in named})
    values = {label: found[label].measure(claim.get("measure", "regret")) for label in named}
    shortest = min(map(len, values.values()))  # of blocks, where a run has ended early
    values = {label: part[:shortest] for label, part in values.items()}
    if test == "best":
        return claims.best(claim["best"], values)
    one, rest = claim[test]
    options = {key: claim[key] for key in ("within", "factor") if key in claim}
    others = rest if isinstance(rest, list) else [rest]
    return claims.every({other: claims.TESTS[test](values[one], values[other], **options) for other in others})


def _words(claim: Mapping[str, Any]) -> str:
    """The test, as a reader would say it."""
    test, what = next(test for test in TESTS if test in claim), claim.get("measure", "regret")
    if test == "slope":
        least = " or below" if claim.get("bound") else ""
        return f"slope {claim['at']}{least} of the logarithms, up to {claim.get('within', 0.1)}"
    if test in ("lowest", "sensitive"):
        return f"lowest at {claim['at']}" if test == "lowest" else "moves more along a curve than between curves"
    if what == "reward":
        one, rest = (claim["best"], claim.get("others", ["the others"])) if test == "best" else claim[test]
        return f"reward of {one} above that of {' and '.join(rest if isinstance(rest, list) else [rest])}"
    if test == "sublinear":
        who = claim[test] if isinstance(claim[test], list) else [claim[test]]
        return f"regret of {' and '.join(who)} smaller in the second half of the rounds than in the first"
    if test == "best":
        return f"{claim['best']} has less {what} than each of {', '.join(claim.get('others', ())) or 'the others'}"
    one, rest = claim[test]
    if test == "grows_less":
        return f"regret of {one} rises less over the first value, on average, than that of {rest}"
    against = " and ".join(rest if isinstance(rest, list) else [rest])
    noun = {"regret": "regret", "select": "selection time", "update": "update time", "round": "time a round"}[what]
    if test == "close":
        return f"{noun} of {one} within {claim['within']:.0%} of {against}"
    if factor := claim.get("factor"):
        return f"{noun} of {one} at most {factor} times that of {against}"
    return f"{noun} of {one} below that of {against}"


# The page -------------------------------------------------------------------------------------------------------------


def _head(
    suite: Suite, panels: Sequence[Panel], found: Mapping[str, Played], lines: Sequence[Line], seconds: float
) -> list[str]:
    sizes = sorted({(run.horizon, run.replicas) for run in runs(panels)}, reverse=True)
    scale = " and ".join(f"{horizon} rounds x {replicas} replicas" for horizon, replicas in sizes)
    versions = ", ".join(f"{name} {number}" for name, number in results.versions().items())
    text = [f"# {suite.title}", "", suite.paper, "", suite.about, ""]
    seeds = " and ".join(map(str, sorted({one.seeds[0] for one in found.values()}))) or "0"
    played = f"{scale}, seeds from {seeds}" if sizes else "no runs, only functions"
    text += [f"Scale `{suite.scale}`: {played}. Written {datetime.now():%Y-%m-%d %H:%M}; {versions}."]
    if sizes:
        text += [f"The runs of this call took {seconds:.0f} s.", "", _TIMED, ""]
        text += [
            "A verdict is a test at 5% on replicas paired by seed (times: on blocks of rounds, on this machine); where"
        ]
        text += ["neither the claim nor its opposite is significant, it is inconclusive. No verdict is taken by eye."]
        text += [f"With {min((r for _, r in sizes), default=0)} replicas only large differences can be seen.", ""]
    text += ["| panel | the paper | tested | verdict |", "|---|---|---|---|"]
    text += [f"| {li.panel} | {_cell(li.paper)} | {_cell(li.test)} | **{li.verdict.outcome}** |" for li in lines]
    return [*text, ""]


def _section(
    out: Path,
    panel: Panel,
    found: Mapping[str, Played],
    lines: Sequence[Line],
    errors: Mapping[str, str],
    level: float = 0.95,
) -> list[str]:
    text = [f"## {panel.name}: {panel.title}", ""]
    if panel.note:
        text += [panel.note, ""]
    if panel.missing:
        return [*text, f"Left out: {panel.missing}", ""]
    for label, run in panel.runs.items():
        if label not in found:
            text += [f"- {label}: {errors.get(run.key, 'not finished')}"]
    if panel.over:
        return [*text, *over.table(out, panel, found), ""]
    if found or panel.draw == "function":
        picture = out / "figures" / f"{panel.name}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(_draw(panel, found, level))
        text += [f"![{panel.title}](figures/{picture.name})", ""]
    if found:
        rows = [_row(label, part) for label, part in found.items()]
        names = _REWARD if "reward_mean" in rows[0] else _TABLE
        results.write_text(out / "tables" / f"{panel.name}.csv", _csv(names, rows))
        text += _table(rows)
        if panel.draw == "average":
            text += ["", *_averages(found)]
    if panel.draw == "grid" and found:
        text += ["", _searched(found)]
    for line in lines:
        verdict, strength = line.verdict, f"p for {line.verdict.p_for:.2g}, against {line.verdict.p_against:.2g}"
        text += ["", f"- The paper: {line.paper}" if line.paper else "- Not a claim of the paper, but of interest."]
        text += [f"  Tested: {line.test}. **{verdict.outcome.capitalize()}**: {verdict.detail}; {strength}."]
        text += [f"  {' '.join(line.note.split())}"] if line.note else []
    return [*text, ""]


def _searched(found: Mapping[str, Played]) -> str:
    """The best point of a grid, and what the search cost."""
    sign = -1 if next(iter(found.values())).what == "reward" else 1
    best = min(found, key=lambda label: sign * float(found[label].curve[:, -1].mean()))
    seeds, seconds = found[best].seeds, sum(part.seconds for part in found.values())
    return (
        f"Best: **{best}**. The grid of {len(found)} took {seconds:.0f} s of process time, on seeds {seeds[0]} to "
        f"{seeds[-1]}, which are not those of the other panels."
    )


def _draw(panel: Panel, found: Mapping[str, Played], level: float = 0.95) -> bytes:
    title = f"{panel.name}: {panel.title}"
    if panel.draw == "function":
        assert panel.function is not None
        x, curves = _evaluate(panel)
        (across,), (over,) = panel.function["curves"], panel.function["x"]
        names = panel.function.get("names", [over, panel.function["_target_"].rpartition(".")[2]])
        shown = {f"{across}={label}": y for label, y in curves.items()}
        return figures.function(x, shown, tuple(names), title, log=bool(panel.function.get("log")))
    if panel.draw == "times":
        return figures.times({k: (1e3 * p.select.mean(), 1e3 * p.update.mean()) for k, p in found.items()}, title)
    if panel.draw == "cost":
        return figures.cost({label: (part.seconds, part.regret[:, -1]) for label, part in found.items()}, title)
    curves, what = {label: part.curve for label, part in found.items()}, next(iter(found.values())).what
    if panel.draw == "grid" and panel.grid is not None and len(panel.grid) == 2 and len(found) == len(panel.runs):
        means = np.array([found[label].curve[:, -1].mean() for label in panel.runs])
        return figures.grid(means.reshape([len(axis) for axis in panel.grid.values()]), panel.grid, title, what)
    if panel.bases and panel.sweep is not None and len(found) == len(panel.runs):
        lines = {b: [c[:, -1] for label, c in curves.items() if label.startswith(f"{b} ")] for b in panel.bases}
        return figures.sweeps(lines, panel.sweep["values"], panel.sweep.get("name", panel.sweep["key"]), title)
    if (
        panel.draw == "sweep"
        and panel.sweep is not None
        and len(found) == len(panel.runs) == len(panel.sweep["values"])
    ):
        return figures.sweep(curves, panel.sweep["values"], panel.sweep.get("name", panel.sweep["key"]), title)
    if panel.draw == "average":
        averages = {label: curve / np.arange(1, curve.shape[1] + 1) for label, curve in curves.items()}
        return figures.regret(averages, title, what, level, f"R(t)/t, mean and {level:.0%} band")
    return figures.regret(curves, title, what, level)


def _averages(found: Mapping[str, Played]) -> list[str]:
    """R(t)/t at a fifth, three fifths and the end of the rounds, mean and sd."""
    rounds = min(part.regret.shape[1] for part in found.values())
    at = [max(1, rounds // 5), max(1, 3 * rounds // 5), rounds]
    text = [f"| algorithm | {' | '.join(f'R({t})/{t}' for t in at)} |", "|---|" + "--:|" * len(at)]
    for label, part in found.items():
        values = [part.regret[:, t - 1] / t for t in at]
        spread = [float(v.std(ddof=1)) if len(v) > 1 else math.nan for v in values]
        cells = [f"{v.mean():.3f} (sd {sd:.3f})" for v, sd in zip(values, spread, strict=True)]
        text.append(f"| {_cell(label)} | {' | '.join(cells)} |")
    return text


def _evaluate(panel: Panel) -> tuple[Array, dict[str, Array]]:
    """The curves of a function panel: x in a range (or at more than two given points), one curve a value of another
    argument. With `whole: true` the function takes all x at once.
    """
    from hydra.utils import get_method

    assert panel.function is not None
    key = (panel.name, json.dumps(panel.function, sort_keys=True))
    if key not in _EVALUATED:
        call, fixed = get_method(panel.function["_target_"]), panel.function.get("fixed", {})
        ((over, range_),), ((across, values),) = panel.function["x"].items(), panel.function["curves"].items()
        x: Array = np.linspace(range_[0], range_[1], 400) if len(range_) == 2 else np.array(range_, dtype=np.float64)
        points: list[Any] = [float(at) for at in x] if len(range_) == 2 else list(range_)
        points = [x] if panel.function.get("whole") else points
        curves = {str(v): [call(**fixed, **{over: at, across: v}) for at in points] for v in values}
        _EVALUATED[key] = x, {v: np.array(y[0] if panel.function.get("whole") else y) for v, y in curves.items()}
    return _EVALUATED[key]


_EVALUATED: dict[tuple[str, str], tuple[Array, dict[str, Array]]] = {}  # what a panel's claims and picture share


def _row(label: str, part: Played) -> dict[str, Any]:
    found = summarise(torch.from_numpy(part.curve[:, -1].copy()))
    if part.what == "reward":
        names = {"reward_mean": "mean", "reward_sd": "sd", "ci95_low": "ci95_low", "ci95_high": "ci95_high"}
        rounds = part.curve.shape[1]
        told = {"rounds": rounds, "a_round": found["mean"] / rounds, "seconds": part.seconds}
        return {"algorithm": label, **{name: found[key] for name, key in names.items()}, **told}
    cost = {"select_ms": 1e3 * float(part.select.mean()), "update_ms": 1e3 * float(part.update.mean())}
    regret = {"regret_mean": found["mean"], "regret_sd": found["sd"]}
    interval = {"ci95_low": found["ci95_low"], "ci95_high": found["ci95_high"]}
    return {"algorithm": label, **regret, **interval, "seconds": part.seconds, **cost}


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if "reward_mean" in rows[0]:
        text = [
            "| algorithm | reward, mean | sd | rounds | a round | 95% interval | s |",
            "|---|--:|--:|--:|--:|:-:|--:|",
        ]
        for row in rows:
            low, high = (f"{row[end] / row['rounds']:.4f}" for end in ("ci95_low", "ci95_high"))
            cells = [
                _number(row["reward_mean"]),
                _number(row["reward_sd"]),
                str(row["rounds"]),
                f"{row['a_round']:.4f}",
            ]
            text.append(
                f"| {_cell(row['algorithm'])} | {' | '.join(cells)} | {low} .. {high} | {_number(row['seconds'])} |"
            )
        return text
    text = [
        "| algorithm | regret, mean | sd | 95% interval | s | select, ms | update, ms |",
        "|---|--:|--:|:-:|--:|--:|--:|",
    ]
    for row in rows:
        interval = f"{_number(row['ci95_low'])} .. {_number(row['ci95_high'])}"
        cells = [_number(row["regret_mean"]), _number(row["regret_sd"]), interval, _number(row["seconds"])]
        cells += [f"{row['select_ms']:.3f}", f"{row['update_ms']:.3f}"]
        text.append(f"| {_cell(row['algorithm'])} | {' | '.join(cells)} |")
    return text


def _claims_csv(lines: Sequence[Line]) -> str:
    names = ("panel", "paper", "test", "verdict", "p_for", "p_against", "detail")
    rows = []
    for li in lines:
        found = li.verdict
        numbers = {"p_for": found.p_for, "p_against": found.p_against, "detail": found.detail}
        rows.append({"panel": li.panel, "paper": li.paper, "test": li.test, "verdict": found.outcome, **numbers})
    return _csv(names, rows)


def _csv(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _number(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:.1f}"
