"""What a suite says about several runs at once: tables over panels, and how regret grows along a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbl import results
from nbl.report import claims, compare
from nbl.report.tables import as_csv
from nbl.suite import Panel

if TYPE_CHECKING:
    from nbl.report.suite import Played


def table(out: Path, panel: Panel, found: Mapping[str, Played]) -> list[str]:
    """A table over several panels: total regret with its sd, or wins, ties and losses by paired t-tests."""
    finals: dict[str, dict[str, dict[int, float]]] = {}  # panel, algorithm, seed
    for label, part in found.items():
        name, _, algorithm = label.partition("/")
        finals.setdefault(name, {})[algorithm] = dict(zip(part.seeds, part.measure("regret").tolist(), strict=True))
    algorithms = list(dict.fromkeys(a for values in finals.values() for a in values))
    rows: dict[str, dict[str, Any]] = {a: {"algorithm": a} for a in algorithms}
    total = {a: np.zeros(3, dtype=int) for a in algorithms}
    for name, values in finals.items():
        title = panel.over[name]
        if panel.draw == "totals":
            mean = {a: np.array(list(v.values())) for a, v in values.items()}
            best = min(mean, key=lambda a: float(mean[a].mean()))
            for a, v in mean.items():
                cell = f"{v.mean():.1f} ± {v.std(ddof=1) if len(v) > 1 else math.nan:.1f}"
                rows[a][title] = f"**{cell}**" if a == best else cell
        else:
            found_pairs = compare.pairs(values, panel.level, panel.correction)
            for a, score in compare.wins(found_pairs, list(values)).items():
                rows[a][title] = "/".join(map(str, score))
                total[a] += score
    if panel.draw == "wins":
        for a in algorithms:
            rows[a]["all"] = "/".join(map(str, total[a]))
    heads = list(dict.fromkeys(key for row in rows.values() for key in row))
    results.write_text(out / "tables" / f"{panel.name}.csv", as_csv(heads, list(rows.values())))
    text = [f"| {' | '.join(heads)} |", "|---" + "|:-:" * (len(heads) - 1) + "|"]
    text += [f"| {' | '.join(str(row.get(head, '-')) for head in heads)} |" for row in rows.values()]
    if panel.draw == "wins":
        corrected = ", with Holm's correction in each column" if panel.correction == "holm" else ", without correction"
        text += ["", f"Wins/ties/losses, two-sided paired t-tests on shared seeds at {panel.level:g}{corrected}."]
    else:
        text += [
            "",
            "Total regret after the last round, mean ± standard deviation over replicas; bold: the lowest mean.",
        ]
    return text


def growth(panel: Panel, names: Sequence[str], found: Mapping[str, Played]) -> claims.Verdict:
    """How much regret rises above that at the first value, on average over the others: for one less than the other?"""
    rises = []
    for name in names:
        runs = [found.get(label) for label in panel.runs if label.startswith(f"{name} ")]
        finals = [run.measure("regret") for run in runs if run is not None]
        if len(finals) < len(runs) or len(finals) < 2 or len({len(values) for values in finals}) > 1:
            return claims.Verdict(1.0, 1.0, f"no results of {name} at every value")
        rises.append(np.mean(finals[1:], axis=0) - finals[0])
    return claims.better(*rises)
