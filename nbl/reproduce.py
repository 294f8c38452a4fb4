"""Play a suite: `python scripts/reproduce.py`, and `nbl-reproduce` once installed.

Every run goes the way of scripts/train.py into a folder of its own. What is finished is skipped, what was stopped goes
on from its checkpoint, what fails is reported and stops nothing else.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from nbl import config as configs
from nbl import suite as suites
from nbl.suite import Run
from nbl.types import NblError

STAMP = "suite.json"  # in the folder of a run of a suite or a sweep: which config it plays, and whether it is done
FILES = ("config.yaml", "summary.json", "rounds.parquet", "metrics.csv", "regret.png", "log.txt")  # that a run leaves
_OPTIONS = ("suite", "scale", "out", "only", "jobs")
_USAGE = """\
Usage: {prog} suite=NAME [scale=default] [out=DIR] [only=PANEL,...] [jobs=N] [--dry-run]

  scale=smoke|default|paper   horizon and replicas      out=DIR       default: runs/suite_<name>_<scale>
  only=fig1a,fig3             these panels (fig3: all that begin so)
  jobs=2                      runs at a time, one thread each; 1 stays in this process
  --dry-run                   what would be run

The same command goes on where it stopped. Suites (recipes/suite, or a file: suite=mine.yaml):
{suites}"""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `error` is empty when it is done, `stopped` when a signal ended it."""

    run: Run
    seconds: float
    error: str = ""
    stopped: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 done, 1 a run failed, 2 bad input, 130 stopped, 141 nobody reads."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if not arguments or {"-h", "--help"} & set(arguments):
            print(_USAGE.format(prog=_prog(), suites=configs.table(configs.choices("suite"))))
            return 0
        return _main(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has read enough; runs that are done stay done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (NblError, OSError) as error:
        if os.environ.get("NBL_TRACEBACK"):
            raise
        where = (
            "" if isinstance(error, NblError) else " Is out= a folder that can be written to, and is the disk not full?"
        )
        print(f"Error: {configs.short(error)}{where}", file=sys.stderr)
        return 2


def _main(arguments: list[str]) -> int:
    given = _parse(arguments)
    if "suite" not in given:
        raise NblError("Which suite? Say suite=NAME, one of:\n" + configs.table(configs.choices("suite")))
    scale = given.get("scale", "default")
    jobs = given.get("jobs") or str(min(2, os.cpu_count() or 1))
    if not jobs.isdigit() or int(jobs) < 1:
        raise NblError(f"jobs={jobs}: need a whole number, at least 1.")
    out = Path(given.get("out") or Path("runs") / f"suite_{Path(given['suite']).stem}_{scale}")
    suite = suites.plan(given["suite"], scale, out)
    chosen = suite.chosen([name for name in given.get("only", "").split(",") if name])
    needed = suites.runs(chosen)
    todo = [run for run in needed if status(run) != "done"]
    _announce(suite, chosen, needed, todo, out, full="--dry-run" in arguments)
    if "--dry-run" in arguments:
        return 0

    begun = time.monotonic()
    outcomes = play_all(todo, int(jobs), _Progress(todo))
    failed = [outcome for outcome in outcomes if outcome.error]
    stopped = any(outcome.stopped for outcome in outcomes) or len(outcomes) < len(todo)
    from nbl.report import suite as report

    done = {run.key for run in suites.runs(suite.panels) if status(run) == "done"}
    shown = [p for p in suite.panels if p in chosen or (p.runs and all(r.key in done for r in p.runs.values()))]
    errors = {outcome.run.key: outcome.error for outcome in failed}
    verdicts = report.write(out, suite, shown, errors, time.monotonic() - begun)
    counts = ", ".join(f"{n} {name}" for name, n in report.count(verdicts).items())
    print(f"Claims: {counts or 'none'}. Report: {out / 'report.md'}")
    for outcome in failed:
        print(f"Failed: {outcome.run.name}: {outcome.error} (see {outcome.run.folder / 'log.txt'})", file=sys.stderr)
    if stopped:
        print("Stopped. The same command goes on from here.", file=sys.stderr)
        return 130
    return 1 if failed else 0


# Runs -----------------------------------------------------------------------------------------------------------------


def status(run: Run) -> str:
    """`done`, `begun` (this config, not finished), `other` (another config is in its folder) or `new`."""
    stamp = read_json(run.folder / STAMP)
    if stamp is None:
        return "other" if (run.folder / "config.yaml").exists() else "new"
    if stamp.get("key") != run.key:
        return "other"
    summary = read_json(run.folder / "summary.json")
    whole = summary is not None and summary.get("horizon") == run.horizon and summary.get("replicas") == run.replicas
    return "done" if stamp.get("done") and whole and (run.folder / "rounds.parquet").exists() else "begun"


def play(run: Run) -> Outcome:
    """Play one run, or go on with it. What it prints goes to log.txt."""
    begun, error, stopped = time.monotonic(), "", Stop.asked
    if stopped:
        return Outcome(run, 0.0, stopped=True)
    start = _prepare(run)
    run.folder.mkdir(parents=True, exist_ok=True)
    _stamp(run, done=False)
    with (run.folder / "log.txt").open("a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        try:
            code = _train(run, start, log)
            stopped = code >= 128
            if code and not stopped:
                log.flush()
                error = _last_line(run.folder / "log.txt")
        except KeyboardInterrupt:
            stopped = True
        except Exception as failure:  # reported at the end; the other runs go on
            traceback.print_exc(file=log)
            error = configs.short(failure) or type(failure).__name__
    if not error and not stopped:
        _stamp(run, done=True)
        shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)  # a finished run is never resumed
    Stop.asked = Stop.asked or stopped
    return Outcome(run, time.monotonic() - begun, error, stopped)


def _stamp(run: Run, done: bool) -> None:
    """Whole or not at all: killed while it writes, a run is what it was before."""
    part = run.folder / f".{STAMP}.part"
    part.write_text(json.dumps({"key": run.key, "done": done}) + "\n")
    os.replace(part, run.folder / STAMP)


def _train(run: Run, start: Path | None, log: TextIO) -> int:
    config = configs.compose(run.overrides)
    if config.trainer.get("devices", 1) in (1, "1"):
        from nbl.train import run as train

        return train(config, start)
    given = [f"resume='{start}'", f"out='{run.folder}'"] if start else run.overrides
    command = [sys.executable, "-m", "nbl", *given]  # of its own: the launcher of several processes runs argv again
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("SLURM_")
    }  # one task, our launcher
    return subprocess.run(command, stdout=log, stderr=log, check=False, env=environ).returncode


def play_all(todo: Sequence[Run], jobs: int, tell: Callable[[Outcome], None]) -> list[Outcome]:
    """Play these runs, `jobs` at a time. A process that dies takes no other run with it."""
    outcomes: list[Outcome] = []
    Stop.asked = False
    if jobs == 1 or len(todo) < 2:
        for run in todo:
            outcomes.append(play(run))
            tell(outcomes[-1])
            if outcomes[-1].stopped:
                break
        return outcomes
    with _one_thread(), _interruptible():
        for batch in _batches(list(todo), outcomes):
            outcomes += _pool(batch, min(jobs, len(batch)), tell)
            if any(outcome.stopped for outcome in outcomes):
                break
    return outcomes


def _batches(todo: list[Run], outcomes: list[Outcome]) -> Iterator[list[Run]]:
    """All at once; then, one by one, those that a dying process left without an answer."""
    yield todo
    answered = {outcome.run.key for outcome in outcomes}
    yield from ([run] for run in todo if run.key not in answered)


def _pool(batch: list[Run], jobs: int, tell: Callable[[Outcome], None]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(play, run): run for run in batch}
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    run = waiting.pop(future)
                    try:
                        outcome = future.result()
                    except BrokenProcessPool:
                        if len(batch) > 1:
                            continue  # one of several: who it was comes out when they are played one by one
                        outcome = Outcome(run, 0.0, "its process died (out of memory?)")
                    outcomes.append(outcome)
                    tell(outcome)
        except KeyboardInterrupt:  # the runs save, and end after the round being played
            for process in multiprocessing.active_children():
                process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)
            outcomes += [Outcome(run, 0.0, stopped=True) for run in waiting.values()]
    return outcomes


def _prepare(run: Run) -> Path | None:
    """The checkpoint to go on from; else an empty folder. What another config left is put aside, never deleted."""
    state = status(run)
    if state == "other":
        names = (run.folder.with_name(f"{run.folder.name}.old{n}") for n in range(1, 10_000))
        run.folder.rename(next(name for name in names if not name.exists()))
    elif state == "begun":
        from nbl import checkpoint

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged checkpoint has a predecessor
            with contextlib.suppress(NblError):
                return checkpoint.find(str(run.folder))
        shutil.rmtree(run.folder)
    return None


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM is answered as Ctrl-C is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Stop:
    """Whether this process was told to stop: it then begins no further run."""

    asked = False


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started in here compute with one thread each."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


# The terminal ---------------------------------------------------------------------------------------------------------


class _Progress:
    """A line for each run that ends, with the time left by what the runs so far have taken."""

    def __init__(self, todo: Sequence[Run]) -> None:
        self.total, self.size = len(todo), sum(run.size for run in todo)
        self.ended, self.played, self.begun = 0, 0, time.monotonic()

    def __call__(self, outcome: Outcome) -> None:
        if outcome.stopped:
            return
        self.ended, self.played = self.ended + 1, self.played + outcome.run.size
        left = (time.monotonic() - self.begun) * (self.size - self.played) / self.played
        how = "failed" if outcome.error else total(outcome.run)
        rest = f", about {clock(left)} left" if self.ended < self.total else ""
        print(f"[{self.ended}/{self.total}] {outcome.run.name}: {how}, {outcome.seconds:.0f} s{rest}", flush=True)


def _announce(
    suite: suites.Suite, chosen: Sequence[suites.Panel], needed: list[Run], todo: list[Run], out: Path, full: bool
) -> None:
    rounds = sum(run.size for run in todo)
    print(
        f"{suite.name}, scale={suite.scale}: {len(chosen)} panels, {len(needed)} runs, {len(needed) - len(todo)} of "
        f"them done; {rounds:,} rounds to play (over all replicas), into {out}/",
        flush=True,
    )
    if suite.minutes and full:
        share = rounds / max(1, sum(run.size for run in suites.runs(suite.panels)))
        left = clock(60 * suite.minutes * share)
        print(f"Time: about {left} on two free cores (the page says {suite.minutes} min for all of it).")
    if full:
        for panel in chosen:
            print(f"\n{panel.name}: {panel.title}" + (f" (left out: {panel.missing})" if panel.missing else ""))
            for label, run in panel.runs.items():
                where = "" if run.name == f"{panel.name}/{label}" else f", the run of {run.name}"
                print(f"  {label}: {run.horizon} rounds x {run.replicas} replicas, {status(run)}{where}")
                if not where:
                    print(f"    {run.command}")


def _parse(arguments: Sequence[str]) -> dict[str, str]:
    given = {}
    for text in arguments:
        key, equals, value = text.partition("=")
        if text == "--dry-run":
            continue
        if key not in _OPTIONS or not equals:
            raise NblError(configs.unknown("option", key, (*_OPTIONS, "--dry-run")))
        given[key] = value
    return given


def total(run: Run) -> str:
    """Its regret, or its reward where regret is not known."""
    summary = read_json(run.folder / "summary.json") or {}
    found = {name: (summary.get(name) or {}).get("mean") for name in ("regret", "reward")}
    return next((f"{name} {mean:.1f}" for name, mean in found.items() if mean is not None), "regret -")


def read_json(file: Path) -> dict[str, Any] | None:
    """What is in the file; None if it is not there or not whole."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _last_line(file: Path) -> str:
    lines = [line for line in file.read_text().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _prog() -> str:
    name = Path(sys.argv[0]).name
    return f"python scripts/{name}" if name.endswith(".py") else name or "nbl-reproduce"
