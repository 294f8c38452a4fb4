"""The command line of the benchmark."""

from __future__ import annotations

import csv
import io
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from nbl import results
from nbl.benchmark import growth
from nbl.benchmark.measure import Row
from nbl.types import NblError

Section = Callable[[], list[Row]]

SECTIONS: dict[str, Section] = {"fixed_arms": growth.fixed_arms}
SMOKE: dict[str, Section] = {"fixed_arms": lambda: growth.fixed_arms(late=1000)}
_USAGE = """\
Usage: {prog} [only=SECTION,...] [out=DIR] [--smoke] [--check]

  only=fixed_arms   these sections: {sections}
  out=DIR           where benchmark.csv goes; default: runs/benchmark
  --smoke           small sizes, half a minute
  --check           exit with 1 when a ratio is below its floor

Process time, one thread. A ratio is the time of what it is compared with over its own: above 1 is faster.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 done, 1 a ratio below its floor with `--check`, 2 bad input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(arguments):
        print(_USAGE.format(prog=Path(sys.argv[0]).name, sections=", ".join(SECTIONS)))
        return 0
    try:
        return _main(arguments)
    except NblError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2


def _main(arguments: list[str]) -> int:
    flags = {a for a in arguments if a.startswith("--")}
    given = dict(a.split("=", 1) for a in arguments if "=" in a and a not in flags)
    odd = [a for a in arguments if a not in flags and "=" not in a]
    if bad := sorted(odd + list(flags - {"--smoke", "--check"}) + list(set(given) - {"only", "out"})):
        raise NblError(f"unknown: {', '.join(bad)}. There are only=, out=, --smoke, --check and --help.")
    sections = SMOKE if "--smoke" in flags else SECTIONS
    chosen = [name for name in given.get("only", "").split(",") if name] or list(sections)
    if unknown := sorted(set(chosen) - set(sections)):
        raise NblError(f"only={','.join(unknown)}: there is no such section. There are: {', '.join(sections)}.")

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as scripts/train.py does
    console, rows = Console(), list[Row]()
    try:
        for name in chosen:
            with console.status(f"{name} ..."):
                begun = time.monotonic()
                rows += sections[name]()
            console.print(f"{name}: {time.monotonic() - begun:.0f} s", style="dim")
    finally:
        torch.set_num_threads(threads)
    out = Path(given.get("out") or Path("runs") / "benchmark")
    results.write_text(out / "benchmark.csv", _csv(rows))
    console.print(_table(rows))
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}. Saved: {out / 'benchmark.csv'}")
    failed = [row for row in rows if row.failed]
    for row in failed:
        print(f"Below its floor of {row.floor:.2f}: {row.section}, {row.case}: {row.ratio:.2f}", file=sys.stderr)
    return 1 if failed and "--check" in flags else 0


def _table(rows: list[Row]) -> Table:
    table = Table("what", "at", "ms", "against", "ratio", "target")
    for row in rows:
        style = "red" if row.failed else "yellow" if row.ratio < row.target else ""
        numbers = [f"{row.seconds * 1e3:.3f}", row.against, _number(row.ratio), _number(row.target)]
        table.add_row(row.section, row.case, *numbers, style=style)
    return table


def _csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    names = list(Row.__dataclass_fields__)
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows)
    return text.getvalue()


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"
