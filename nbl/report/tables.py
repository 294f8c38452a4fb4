"""The tables of a comparison: as rows, and those as markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbl.report import compare
from nbl.report.runs import Problem

SUMMARY = (
    "problem", "algorithm", "seeds", "mean", "sd", "ci95_low", "ci95_high", "wins", "ties", "losses", "best", "seconds",
)  # fmt: skip
PAIRS = (
    "problem", "a", "b", "seeds", "difference", "ci95_low", "ci95_high", "ratio", "p", "p_adjusted", "better",
)  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """A problem with its tables: one row an algorithm, one row a pair."""

    problem: Problem
    summary: list[dict[str, Any]]
    pairs: list[dict[str, Any]]


def tables(problem: Problem, level: float, correction: str, test: str) -> Compared:
    """What each algorithm came to, the best first, and every two of them compared."""
    lower = problem.measure == "regret"
    finals = {e.label: dict(zip(e.seeds, (float(v) for v in e.curves[:, -1]), strict=True)) for e in problem.entries}
    if len(problem.shared) > 1:
        finals = {label: {seed: part[seed] for seed in problem.shared} for label, part in finals.items()}
    found = compare.pairs(finals, level, correction, test, lower)
    score = compare.wins(found, list(finals))
    means = {label: sum(part.values()) / len(part) for label, part in finals.items()}
    order = sorted(finals, key=lambda label: means[label] if lower else -means[label])
    beaten = {p.b if p.winner == p.a else p.a for p in found if p.winner == order[0]}
    summary = []
    for label in order:
        entry = next(e for e in problem.entries if e.label == label)
        values = entry.of(list(finals[label]))[:, -1]
        low, high = compare.interval(values)
        w, t, lost = score[label]
        summary.append(
            {
                "problem": problem.name,
                "algorithm": label,
                "seeds": len(values),
                "mean": float(values.mean()),
                "sd": float(values.std(ddof=1)) if len(values) > 1 else math.nan,
                "ci95_low": low,
                "ci95_high": high,
                "wins": w,
                "ties": t,
                "losses": lost,
                "best": label not in beaten,
                "seconds": sum(float(run.summary.get("wall_seconds") or 0) for run in entry.runs),
            }
        )
    rows = [
        {
            "problem": problem.name,
            "a": p.a,
            "b": p.b,
            "seeds": p.n,
            "difference": p.difference,
            "ci95_low": p.low,
            "ci95_high": p.high,
            "ratio": _ratio([finals[p.a], finals[p.b]]),
            "p": p.p if p.n > 1 else math.nan,
            "p_adjusted": p.adjusted if p.n > 1 else math.nan,
            "better": p.winner if p.n > 1 else "too few shared seeds",
        }
        for p in found
    ]
    return Compared(problem, summary, rows)


def _ratio(two: Sequence[Mapping[int, float]]) -> float:
    shared = set(two[0]) & set(two[1])
    top, bottom = (sum(part[seed] for seed in shared) for part in two)
    return top / bottom if bottom else math.nan


def cells(compared: Compared) -> tuple[list[str], list[list[str]], list[str], list[list[str]]]:
    """Headings and rows of both tables, as text."""
    what = f"{compared.problem.measure}, mean"
    heads = ["algorithm", "seeds", what, "sd", "95% interval", "wins / ties / losses", "seconds"]
    rows = []
    for row in compared.summary:
        line = [row["algorithm"], str(row["seeds"]), number(row["mean"]), number(row["sd"])]
        line += [_range(row), f"{row['wins']} / {row['ties']} / {row['losses']}", number(row["seconds"])]
        rows.append(line)
    pair_heads = ["a", "b", "seeds", "a - b, mean", "95% interval", "a / b", "p", "p, corrected", "better"]
    pairs = []
    for row in compared.pairs:
        line = [row["a"], row["b"], str(row["seeds"]), number(row["difference"]), _range(row), number(row["ratio"], 2)]
        pairs.append([*line, chance(row["p"]), chance(row["p_adjusted"]), row["better"]])
    return heads, rows, pair_heads, pairs


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], bold: Sequence[bool] = ()) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", "|" + "|".join("---" if i == 0 else "--:" for i in range(len(heads))) + "|"]
    for index, row in enumerate(rows):
        safe = [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
        if index < len(bold) and bold[index]:
            safe[0] = f"**{safe[0]}**"
        lines.append(f"| {' | '.join(safe)} |")
    return lines


def latex(compared: Compared) -> str:
    """A tabular with mean and sd; bold are the best and whatever does not differ from it significantly."""
    problem = compared.problem
    lines = [
        f"% {problem.name}: cumulative {problem.measure}, {len(problem.shared) or 'own'} seeds",
        r"\begin{tabular}{lrrr}",
    ]
    lines += [r"\hline", rf"{_tex(problem.name)} & {problem.measure} & 95\% interval & w/t/l \\", r"\hline"]
    for row in compared.summary:
        spread = "" if math.isnan(row["sd"]) else rf" \pm {row['sd']:.1f}"
        value = rf"{row['mean']:.1f}{spread}"
        value = rf"$\mathbf{{{value}}}$" if row["best"] else f"${value}$"
        line = [_tex(row["algorithm"]), value, _tex(_range(row)), f"{row['wins']}/{row['ties']}/{row['losses']}"]
        lines.append(" & ".join(line) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def as_csv(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def number(value: float, digits: int = 1) -> str:
    return "-" if not math.isfinite(value) else f"{value:.{digits}f}"


def chance(p: float) -> str:
    return "-" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def _range(row: Mapping[str, Any]) -> str:
    return "-" if math.isnan(row["ci95_low"]) else f"{row['ci95_low']:.1f} .. {row['ci95_high']:.1f}"


def _tex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
