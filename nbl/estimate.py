"""What a sweep will take: `python scripts/train.py -m ... --dry-run`.

Speeds are those of runs already made (summary.json in the sweep's folder and in runs/) of the same recipe, environment,
algorithm and number of replicas; where there are none, a run of a few rounds is played here and thrown away. Rounds may
grow dearer with t, so that a short run promises too much: `from` says how many rounds a speed was measured over.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbl import config as configs
from nbl import reproduce, sweeps
from nbl.suite import Run
from nbl.types import NblError

ROUNDS = 60  # of a measurement
START = 5.0  # seconds that a run takes beside its rounds: imports, composing, pictures
Kind = tuple[str, str, str, int]  # recipe, environment, algorithm, replicas


@dataclass(frozen=True)
class Speed:
    """Rounds a second of one process, over so many rounds; and what a run writes: bytes, and bytes a round."""

    rounds_per_second: float
    over: int
    fixed: float
    per_round: float

    def seconds(self, horizon: int) -> float:
        return START + horizon / self.rounds_per_second

    def size(self, horizon: int) -> float:
        return self.fixed + self.per_round * horizon


def show(sweep: sweeps.Sweep) -> int:
    """Print the plan; nothing is written."""
    if not sweep.jobs:
        raise NblError(
            "--dry-run is for a grid; a search plays hydra.sweeper.n_trials runs, which depend on each other."
        )
    kinds: dict[tuple[str, ...], tuple[Kind, int]] = {}
    for job in sweep.jobs:
        if (part := sweeps.distinct(job)) not in kinds:
            kinds[part] = kind(job)
    known = measured([sweep.root, Path("runs")])
    todo: list[tuple[Kind, int]] = []
    for job, folder in zip(sweep.jobs, sweep.folders, strict=True):
        there = (folder / reproduce.STAMP).exists()
        if not there or reproduce.status(sweeps.made(job, folder)) != "done":
            todo.append(kinds[sweeps.distinct(job)])
            if todo[-1][0] not in known:
                known[todo[-1][0]] = measure(job)
    print("\n".join(describe(sweep.root, len(sweep.jobs), todo, known, os.cpu_count() or 1)))
    return 0


def describe(
    root: Path, runs: int, todo: Sequence[tuple[Kind, int]], known: dict[Kind, Speed], cores: int
) -> list[str]:
    """The plan in words. `todo` is each run to play, with its horizon."""
    rounds = sum(horizon for _, horizon in todo)
    lines = [f"{runs:,} runs, {runs - len(todo):,} of them done; {rounds:,} rounds to play, into {root}/"]
    for each, count in Counter(each for each, _ in todo).items():
        recipe, env, algorithm, replicas = each
        speed = known[each]
        lines.append(
            f"  {count:,} x {recipe} ({algorithm} on {env}, {replicas} replicas): "
            f"{speed.rounds_per_second:.0f} rounds/s, from {speed.over:,} rounds"
        )
    seconds = [known[each].seconds(horizon) for each, horizon in todo]
    size = sum(known[each].size(horizon) for each, horizon in todo)
    total, longest = sum(seconds), max(seconds, default=0.0)
    lines.append(
        f"Time: {clock(total)} of one core; this machine ({cores} cores): {clock(spread(total, longest, cores))}"
    )
    machines = [1, 10, 100] if len(todo) > cores else [1]
    table = ", ".join(f"{n}: {clock(spread(total, longest, n * cores))}" for n in machines)
    lines.append(f"Machines of {cores} cores, a run a core: {table}; done within a day on {needed(total, cores)}")
    lines.append(f"Writes: {amount(size)}, {len(todo):,} folders with {', '.join(reproduce.FILES)}")
    return lines


def spread(total: float, longest: float, cores: int) -> float:
    """Seconds on so many cores: at best an even share, at least the longest run."""
    return max(total / cores, longest)


def needed(total: float, cores: int, within: float = 86400.0) -> int:
    """Machines that play all of it within a day."""
    return max(1, math.ceil(total / cores / within))


def kind(job: Sequence[str]) -> tuple[Kind, int]:
    config = configs.compose(job)
    return (config.recipe, config.choices.env, config.choices.algorithm, config.replicas), config.horizon


def measured(folders: Iterable[Path]) -> dict[Kind, Speed]:
    """Speeds of the runs in these folders; of several of a kind, the longest run's."""
    found: dict[Kind, Speed] = {}
    for file in (file for folder in folders for file in sorted(folder.glob("**/summary.json"))):
        summary = reproduce.read_json(file) or {}
        speed = _speed(summary, file.parent)
        if speed is not None:
            name = (summary["recipe"], summary["env"], summary["algorithm"], summary["replicas"])
            if name not in found or found[name].over < speed.over:
                found[name] = speed
    return found


def measure(job: Sequence[str]) -> Speed:
    """A few rounds of this job, played here, in a folder that is removed."""
    folder = Path(tempfile.mkdtemp())
    try:
        short = [override for override in job if not override.startswith("horizon=")]
        few = min(ROUNDS, configs.compose(job).horizon)
        quiet = ("logger=none", "checkpoint.every=0", f"horizon={few}")
        run: Run = sweeps.made([*(o for o in short if not o.startswith("logger")), *quiet], folder / "run")
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = reproduce.play(run)
        speed = _speed(reproduce.read_json(run.folder / "summary.json") or {}, run.folder)
        if outcome.stopped:
            raise KeyboardInterrupt
        if outcome.error or speed is None:
            raise NblError(f"{run.command} cannot be timed: {outcome.error or 'it played no round'}.")
        return speed
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _speed(summary: dict[str, Any], folder: Path) -> Speed | None:
    keys = ("recipe", "env", "algorithm", "replicas", "rounds", "rounds_per_second")
    if any(not summary.get(key) for key in keys):
        return None
    sizes = {name: (folder / name).stat().st_size for name in reproduce.FILES if (folder / name).exists()}
    grows = sizes.pop("rounds.parquet", 0)
    return Speed(summary["rounds_per_second"], summary["rounds"], sum(sizes.values()), grows / summary["rounds"])


def clock(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def amount(size: float) -> str:
    for unit, length in (("GB", 1e9), ("MB", 1e6)):
        if size >= length:
            return f"{size / length:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"
