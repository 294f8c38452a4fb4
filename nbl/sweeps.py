"""Sweeps: the runs that a command line with commas means, each in a folder named after what was swept.

Hydra's sweeper makes the jobs and its launcher says where they run; `play` is what a job does, there. A run goes the
way of a suite's (nbl.reproduce): what is finished is skipped, by the digest of its config; what was stopped goes on.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nbl import config as configs
from nbl import reproduce
from nbl.suite import Run, digest
from nbl.types import NblError

LAUNCHERS = {  # package and extra that `hydra/launcher=` needs
    "joblib": ("hydra_plugins.hydra_joblib_launcher", "sweep"),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", "slurm"),
    "submitit_slurm": ("hydra_plugins.hydra_submitit_launcher", "slurm"),
    "ray": ("ray", "ray"),
}
MACHINERY = ("joblib", "submitit", "ray")  # whose errors say that a process or a machine was lost
SWEEPERS = {"optuna": ("optuna", "sweep")}


@dataclass(frozen=True)
class Sweep:
    """What was asked for. A search (Optuna) finds its jobs as it goes: it has none here."""

    root: Path
    jobs: tuple[tuple[str, ...], ...]  # overrides of each
    folders: tuple[Path, ...]
    arguments: tuple[str, ...]  # for Hydra


def plan(overrides: Sequence[str]) -> Sweep:
    """The jobs, checked: what is wrong with one of them is said before the first one starts."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    given = configs.parse(overrides)
    if "resume" in given:
        raise NblError("resume= goes on with one run. A sweep goes on by the same command, with out= its folder.")
    _installed(given)
    parser = OverridesParser.create()
    parsed = [o for o in parser.parse_overrides(list(overrides)) if o.get_key_element() != "out"]
    swept = {o.get_key_element() for o in parsed if o.is_sweep_override()}
    task = [o for o in parsed if not o.is_hydra_override()]
    name = given.get("recipe", "") if "recipe" not in swept else "sweep"
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    root = Path(given["out"].strip("'\"")) if given.get("out") else Path("runs") / name / now
    jobs: list[tuple[str, ...]] = []
    if given.get("hydra/sweeper", "basic") == "basic":
        batches = BasicSweeper.split_arguments(task, max_batch_size=None)
        jobs = [tuple(job) for batch in batches for job in batch]
        _check(jobs)
    else:
        configs.compose([str(o.input_line) for o in task if not o.is_sweep_override()])
    still = sorted({o.key_or_group for o in task if o.get_key_element() not in swept})
    named = [",".join(sorted(o for o in job if o.partition("=")[0] in swept)) for job in jobs]  # as Hydra does
    if len(set(named)) < len(named):
        twice = next(name for n, name in enumerate(named) if name in named[:n])
        raise NblError(f"The sweep has {twice} twice: name every value once.")
    arguments = (
        *(str(o.input_line) for o in parsed),
        f"hydra.sweep.dir='{root}'",
        "hydra.sweep.subdir=" + ("${hydra.job.override_dirname}" if swept else "run"),
        f"hydra.job.config.override_dirname.exclude_keys=[{','.join(repr(key) for key in still)}]",
    )
    return Sweep(root, tuple(jobs), tuple(root / (name or "run") for name in named), arguments)


def play(job: Sequence[str], folder: Path) -> reproduce.Outcome:
    """One job, wherever the launcher has put it: a line on the terminal, the rest in its log.txt."""
    run = made(job, folder)
    if reproduce.status(run) == "done":
        print(f"{folder.name}: done before", flush=True)
        return reproduce.Outcome(run, 0.0)
    outcome = reproduce.play(run)
    if outcome.error:
        print(f"{folder.name}: failed: {outcome.error} (see {folder / 'log.txt'})", file=sys.stderr, flush=True)
    elif not outcome.stopped:
        print(f"{folder.name}: {reproduce.total(run)}, {outcome.seconds:.0f} s", flush=True)
    return outcome


def made(job: Sequence[str], folder: Path) -> Run:
    config = configs.compose(job)
    quiet = () if any("callbacks.progress" in override for override in job) else ("callbacks.progress=null",)
    overrides = (*job, *quiet, f"out='{folder}'")
    key = digest(config)
    return Run(folder.name, folder, " ".join(job), overrides, key, config.horizon, config.replicas)


def objective(run: Run) -> float | None:
    """What a search makes small: mean regret at the end, or minus the mean reward where regret is not known."""
    summary = reproduce.read_json(run.folder / "summary.json") or {}
    found = [(summary.get(name) or {}).get("mean") for name in ("regret", "reward")]
    return found[0] if found[0] is not None else None if found[1] is None else -found[1]


def close(sweep: Sweep, stopped: bool) -> int:
    """Say how it went; the exit code."""
    stamps = [reproduce.read_json(folder / reproduce.STAMP) or {} for folder in sweep.folders]
    done = sum(bool(stamp.get("done")) for stamp in stamps)
    if sweep.jobs:
        print(f"{done} of {len(stamps)} runs are done, in {sweep.root}", flush=True)
    if stopped:
        print(f"Stopped. The same command with out={sweep.root} goes on from here.", file=sys.stderr)
        return 130
    return 0 if done == len(stamps) else 1


def lost(sweep: Sweep, error: Exception) -> int:
    """The launcher gave up, as joblib does when one of its processes is killed: what is done is done."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    print(f"Error: the launcher lost a process. {type(error).__name__}: {said}", file=sys.stderr)
    close(sweep, stopped=False)
    print(f"The same command with out={sweep.root} goes on from here.", file=sys.stderr)
    return 1


def distinct(job: Sequence[str]) -> tuple[str, ...]:
    """The job but for its seed: jobs that differ by no more are checked, and timed, once."""
    return tuple(override for override in job if not override.startswith("seed="))


def _check(jobs: Sequence[Sequence[str]]) -> None:
    """Compose each job; of those that differ by seed alone, the first and any whose seed is no whole number."""
    seen: set[tuple[str, ...]] = set()
    for job in jobs:
        odd = any(not re.fullmatch(r"seed=-?\d{1,18}", o) for o in job if o.startswith("seed="))
        if odd or distinct(job) not in seen:
            configs.compose(job)
        seen.add(distinct(job))


def _installed(given: dict[str, str]) -> None:
    for group, known in (("launcher", LAUNCHERS), ("sweeper", SWEEPERS)):
        name = given.get(f"hydra/{group}", "basic")
        if name not in ("basic", *known):
            raise NblError(configs.unknown(f"hydra/{group}", name, ("basic", *known)))
        if name != "basic" and not _there(known[name][0]):
            raise NblError(f"hydra/{group}={name} is not installed: pip install 'nbl[{known[name][1]}]'.")


def _there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
