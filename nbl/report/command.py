"""Compare any runs: `python scripts/report.py runs/...`, and `nbl-report` once installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from nbl import config as configs
from nbl.report import compare
from nbl.report.page import page
from nbl.report.runs import find, problems, read
from nbl.report.tables import PAIRS, SUMMARY, Compared, as_csv, cells, latex, markdown, tables
from nbl.results import versions, write_text
from nbl.types import NblError

_OPTIONS = ("out", "level", "correction", "test", "at", "title")
_USAGE = """\
Usage: {prog} FOLDER [FOLDER ...] [key=value ...]

  {prog} runs                                   everything that was played here
  {prog} runs/neural_ucb runs/neural_ts out=report/two
  {prog} runs/suite_thompson_default at=500 correction=none level=0.1

A FOLDER is a run's, or any folder above such folders. Runs of the same environment and length are compared with each
other, on the seeds they share; runs of one config are pooled over their seeds. Lower regret is better.

  out=DIR            default: report; gets report.html (curves to zoom and toggle), report.md, summary.csv, pairs.csv,
                     tables.tex
  test=t|wilcoxon    paired by seed, two-sided                   level=0.05       of the tests
  correction=holm    for the number of pairs; none               at=N             compare after round N
  title=TEXT         of the page
  -h, --help         this
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 done, 2 bad input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or {"-h", "--help"} & set(arguments):
        print(_USAGE.format(prog=_prog()), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    try:
        return _main(arguments)
    except (NblError, OSError) as error:
        if os.environ.get("NBL_TRACEBACK"):
            raise
        print(f"Error: {configs.short(error)}", file=sys.stderr)
        return 2


def _main(arguments: Sequence[str]) -> int:
    folders, given = _parse(arguments)
    if not folders:
        raise NblError("Which runs? Name at least one folder, for example: runs")
    level, at = _number(given, "level", 0.05), int(_number(given, "at", 0)) or None
    correction, test = given.get("correction", "holm"), given.get("test", "t")
    out = Path(given.get("out", "report"))
    if out.exists() and not out.is_dir():
        raise NblError(f"out={out} is a file. Choose a folder.")
    found, remarks = find(folders)
    whole = []
    for folder in found:
        try:
            whole.append(read(folder))
        except NblError as error:
            if len(found) == 1:
                raise
            remarks.append(f"Left out: {error}")
    if not whole:
        raise NblError("\n".join(remarks))
    made = [tables(problem, level, correction, test) for problem in problems(whole, at)]
    alone = [part.problem.name for part in made if len(part.problem.entries) == 1]
    if alone:
        remarks.append(f"Nothing to compare with: {', '.join(alone)}.")
    title, about = given.get("title", "Comparison of runs"), _about(level, correction, test)
    write_text(out / "report.html", page(title, [*about, *remarks], made))
    write_text(out / "report.md", _markdown(title, [*about, *remarks], made))
    write_text(out / "summary.csv", as_csv(SUMMARY, [row for part in made for row in part.summary]))
    write_text(out / "pairs.csv", as_csv(PAIRS, [row for part in made for row in part.pairs]))
    write_text(out / "tables.tex", "\n".join(latex(part) for part in made))
    for part in made:
        heads, rows, *_ = cells(part)
        print("\n".join([f"{part.problem.name}:", *_aligned([heads, *rows]), *part.problem.notes, ""]))
    for remark in remarks:
        print(remark, file=sys.stderr)
    print(f"Report: {out}/ (report.html, report.md, summary.csv, pairs.csv, tables.tex)")
    return 0


def _about(level: float, correction: str, test: str) -> list[str]:
    name = {"t": "paired t-tests", "wilcoxon": "Wilcoxon's signed-rank tests"}.get(test, test)
    corrected = "Holm's correction for the number of pairs" if correction == "holm" else "no correction"
    return [
        f"Replicas are paired by seed. Wins, ties and losses are by {name}, two-sided, at {level:g} with {corrected}. "
        "Bold: the best, and whatever does not differ from it significantly. 95% intervals are percentiles of "
        f"{compare.RESAMPLES} bootstrap means over seeds.",
        f"Written {datetime.now():%Y-%m-%d %H:%M} by {', '.join(f'{k} {v}' for k, v in versions().items())}.",
    ]


def _markdown(title: str, about: Sequence[str], made: Sequence[Compared]) -> str:
    text = [f"# {title}", ""]
    for paragraph in about:
        text += [paragraph, ""]
    for part in made:
        heads, rows, pair_heads, pairs = cells(part)
        text += [f"## {part.problem.name}", ""]
        for note in part.problem.notes:
            text += [note, ""]
        text += [*markdown(heads, rows, [row["best"] for row in part.summary]), ""]
        text += [*markdown(pair_heads, pairs), ""] if pairs else []
        folders = [(e.label, os.path.relpath(run.folder)) for e in part.problem.entries for run in e.runs]
        text += [*(f"- {label}: `{folder}`" for label, folder in folders), ""]
    return "\n".join(text)


def _parse(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    folders, given = [], {}
    for text in arguments:
        key, equals, value = text.partition("=")
        if text.startswith("-") or (equals and key not in _OPTIONS and not Path(text).exists()):
            raise NblError(configs.unknown("option", key, (*_OPTIONS, "--help")))
        if equals and key in _OPTIONS:
            given[key] = value
        else:
            folders.append(text)
    return folders, given


def _number(given: dict[str, str], key: str, default: float) -> float:
    try:
        value = float(given.get(key, default))
    except ValueError as error:
        raise NblError(f"{key}={given[key]}: need a number.") from error
    if key == "at" and key in given and (value < 1 or value != int(value)):
        raise NblError(f"at={given[key]}: need a round, a whole number from 1.")
    return value


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, wide, strict=True)))
        for row in rows
    ]


def _prog() -> str:
    name = Path(sys.argv[0]).name
    return f"python scripts/{name}" if name.endswith(".py") else name or "nbl-report"
