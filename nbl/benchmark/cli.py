"""The command line of the benchmark."""

from __future__ import annotations

import csv
import io
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from nbl import results
from nbl.benchmark import algorithms, auto, confidence, growth, limit, overhead, peers, replicas, runs
from nbl.benchmark.measure import Row
from nbl.types import NblError

Section = Callable[[], Iterable[Row]]

SECTIONS: dict[str, Section] = {
    "overhead": overhead.loop,
    "verbs": overhead.verbs,
    "confidence": confidence.textbook,
    "diagonal": confidence.diagonal,
    "runs": runs.textbook,
    "peers": peers.calvera,
    "algorithms": algorithms.papers,
    "replicas": replicas.stacked,
    "auto": auto.auto,
    "training_limit": limit.training,
    "memory_limit": limit.memory,
    "many_arms": growth.many_arms,
    "fixed_arms": growth.fixed_arms,
    "long_run": growth.long_run,
    "rounds": growth.rounds,
    "sizes": growth.sizes,
    "memory": growth.memory,
}
SMOKE: dict[str, Section] = {
    "overhead": lambda: overhead.loop(rounds=100, repeats=1),
    "verbs": lambda: overhead.verbs((50,), (1,)),
    "confidence": lambda: confidence.textbook((19,), (1, 50, 100)),
    "diagonal": lambda: confidence.diagonal((100,)),
    "runs": lambda: runs.textbook((1, 50), (), names=("NeuralUCB",)),
    "peers": lambda: peers.calvera((20,), steps=20, names=("NeuralUCB",)),
    "algorithms": lambda: algorithms.papers(("NeuralUCB", "Neural-ES"), 10, (1, 10)),
    "replicas": lambda: replicas.stacked(((20, 20, "auto"),)),
    "auto": lambda: auto.auto(((5, 150),)),
    "training_limit": lambda: limit.training((100,), (1000,), (1,)),
    "many_arms": lambda: growth.many_arms(t=200),
    "fixed_arms": lambda: growth.fixed_arms(late=300, replicas=(1,)),
    "sizes": lambda: growth.sizes((4, 100), (20,), (5,), 20),
    "memory": lambda: growth.memory((100,)),
}
_USAGE = """\
Usage: {prog} [only=SECTION,...] [out=DIR] [--smoke] [--check]

  only=fixed_arms   these sections: {sections}
  out=DIR           where benchmark.csv and benchmark.md go; default: runs/benchmark, or runs/benchmark_smoke
  --smoke           small sizes, half a minute
  --check           exit with 1 when a ratio is below its floor, twice in a row

Process time, one thread. A ratio is the time of what it is compared with over its own: above 1 is faster. A target of
0.33 reads "at most 3 times as long". The whole takes less than ten minutes on a free core.
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
    warnings.filterwarnings("ignore", message=".*srun.*")  # Lightning's, where SLURM is installed
    console, rows = Console(width=None if sys.stdout.isatty() else 160), list[Row]()
    try:
        for name in chosen:
            begun = time.monotonic()
            with console.status(f"{name} ..."):
                found = list(sections[name]())
                if "--check" in flags and any(row.failed for row in found):
                    found = list(sections[name]())  # perhaps someone else was at work
            rows += found
            console.print(f"{name}: {time.monotonic() - begun:.0f} s", style="dim")
    finally:
        torch.set_num_threads(threads)
    out = Path(given.get("out") or Path("runs") / ("benchmark_smoke" if "--smoke" in flags else "benchmark"))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    results.write_text(out / "benchmark.csv", _csv(rows))
    results.write_text(out / "benchmark.md", _markdown(rows, machine))
    console.print(_table(rows))
    print(f"{machine}. Saved: {out / 'benchmark.csv'}, {out / 'benchmark.md'}")
    with_target = [row.reached for row in rows if row.reached]
    print(f"Targets reached: {with_target.count('yes')} of {len(with_target)}.")
    for note in dict.fromkeys(row.note for row in rows if row.case == "skipped"):
        print(note)
    failed = [row for row in rows if row.failed]
    for row in failed:
        print(f"Below its floor of {row.floor:.2f}: {row.section}, {row.case}: {row.ratio:.2f}", file=sys.stderr)
    return 1 if failed and "--check" in flags else 0


COLUMNS = ("what", "at", "ms", "against", "ratio", "target", "reached", "note")


def _cells(row: Row) -> list[str]:
    numbers = [_number(row.seconds * 1e3, 3), row.against, _number(row.ratio), _number(row.target), row.reached]
    return [row.section, row.case, *numbers, row.note]


def _table(rows: list[Row]) -> Table:
    table = Table(*COLUMNS)
    for row in rows:
        style = "red" if row.failed else "yellow" if row.reached == "no" else ""
        table.add_row(*_cells(row), style=style)
    return table


def _markdown(rows: list[Row], machine: str) -> str:
    lines = [COLUMNS, ["---"] * len(COLUMNS), *map(_cells, rows)]
    return f"{machine}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    names = [*Row.__dataclass_fields__, "reached"]
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows)
    return text.getvalue()


def _number(value: float, digits: int = 2) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"
