"""The command line: `python scripts/train.py`, and `nbl-train` once installed.

Hydra composes the config and runs sweeps. This file adds what a newcomer needs: help that lists what there is, and
errors of one screen. Only when there is something to play are torch and Lightning imported.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbl import config as configs
from nbl.types import NblError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_LISTED = {"Recipes": "recipe", "Environments": "env", "Loggers": "logger", "Callbacks": "callbacks"}
_USAGE = """\
Usage: {prog} recipe=NAME [key=value ...]

  {prog} recipe=neural_es horizon=500 replicas=10 seed=3
  {prog} recipe=neural_ucb env=zhou_h2 algorithm.nu=0.3 logger=csv out=results/h2
  {prog} -m recipe=lin_ucb,neural_ucb seed=0,100          every combination, each in its own folder
  {prog} recipe=neural_ucb resume=last                    go on where the last run of it stopped

Options (key=value; --cfg job with a recipe prints all there are):
  horizon=N          rounds to play            replicas=N        independent runs advanced together
  seed=N             of the first replica      out=DIR           default: runs/<recipe>/<date>_<time>
  env=NAME           environment               logger=NAME       where curves go
  algorithm=NAME     algorithm                 algorithm.KEY=V   its hyper-parameters
  trainer.KEY=V      Lightning Trainer's       checkpoint.every=N  rounds; 0: none
  +callbacks=NAME    puts a callback in; [NAME,NAME] several; callbacks.KEY=null takes one out
  log_every=N        rounds a point of a curve resume=PATH|last  a checkpoint, a run's folder, or the newest run
  threads=N          CPU threads

  -m, --multirun     sweep: commas separate values; hydra/launcher=joblib|submitit_slurm|ray runs them in parallel
  --dry-run          with -m: how many runs, how long, on how many machines, what they write
  --cfg job          print the config and stop (other flags of Hydra: --hydra-help)
  -h, --help         this
"""


_EITHER = {"callbacks=": "+", "algorithm.fit.compile=": "++"}  # either way of writing it: no recipe has these keys
_codes: list[int] = []  # exit codes of the jobs Hydra ran


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 2 bad input, 1 stopped by an error, 128 + n by signal n."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for plain, added in _EITHER.items():
        arguments = [added + a if a.startswith(plain) else a for a in arguments]
    try:
        if not arguments or {"-h", "--help"} & set(arguments):
            print(_help(), file=sys.stdout if arguments else sys.stderr)
            return 0 if arguments else 2
        flags = [a for a in arguments if a.startswith("-")]
        overrides = [a for a in arguments if not a.startswith("-")]
        if not flags:
            return _run(overrides)
        if set(flags) <= {"-m", "--multirun", "--dry-run"}:
            return _sweep(overrides, dry="--dry-run" in flags)
        return _hydra(arguments)
    except KeyboardInterrupt:
        print("Stopped before the first round.", file=sys.stderr)
        return 130
    except OSError as error:
        if os.environ.get("NBL_TRACEBACK"):
            raise
        print(f"Error: {error}. Is out= a folder that can be written to, and is the disk not full?", file=sys.stderr)
        return 2
    except Exception as error:
        known = type(error).__module__.split(".")[0] in ("hydra", "omegaconf", "nbl_callbacks")
        ours = isinstance(error, NblError) or known
        if not ours or os.environ.get("NBL_TRACEBACK"):
            raise
        print(f"Error: {configs.short(error)}", file=sys.stderr)
        return 2


def _run(overrides: list[str]) -> int:
    given = configs.parse(overrides)
    if given.get("resume", "null") not in ("null", ""):
        return _resume(overrides, given)
    config = configs.compose(overrides)
    from nbl.train import run

    return run(config)


def _resume(overrides: list[str], given: dict[str, str]) -> int:
    """Go on with a run: its folder and its config, unless told otherwise."""
    from omegaconf import OmegaConf
    from yaml import YAMLError  # type: ignore[import-untyped]

    from nbl import checkpoint

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = checkpoint.find(given["resume"].strip("'\""), recipe=given.get("recipe"))
    for warning in caught:
        print(f"Warning: {warning.message}", file=sys.stderr)
    folder = start.resolve().parent.parent
    if not (folder / "config.yaml").is_file():
        raise NblError(f"resume={given['resume']}: {folder} has no config.yaml, so it is not the folder of a run.")
    try:
        saved: Any = OmegaConf.load(folder / "config.yaml")
        saved = configs.complete(saved)
    except (ValueError, OSError, YAMLError) as error:
        raise NblError(f"{folder / 'config.yaml'} cannot be read ({configs.short(error)}): start anew.") from error
    config = configs.resumed(overrides, saved)
    config.out = given["out"].strip("'\"") if "out" in given else os.path.relpath(folder)
    checkpoint.read(start)
    from nbl.train import run

    return run(config, start)


def _sweep(overrides: list[str], dry: bool = False) -> int:
    """Hydra's multirun, with every job checked before the first one starts."""
    from nbl import reproduce, sweeps

    sweep = sweeps.plan(overrides)
    if dry:
        from nbl import estimate

        return estimate.show(sweep)
    reproduce.Stop.asked = False
    code = _hydra(["--multirun", *sweep.arguments])
    return sweeps.close(sweep, stopped=code == 130 or reproduce.Stop.asked)


def _hydra(arguments: list[str]) -> int:
    """Hand over to Hydra, as `hydra.main` does."""
    import hydra

    sys.argv = [_prog(), *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come back here instead of being printed
    _codes.clear()
    try:
        hydra.main(config_path=str(configs.folder().resolve()), config_name="train", version_base="1.3")(_job)()
    except KeyboardInterrupt:
        return 130
    return max(_codes, default=0)


def _job(config: DictConfig) -> float | None:
    """One job of a sweep, in whatever process; or a run that was given a flag of Hydra's."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    hydra = HydraConfig.get()
    if hydra.mode == RunMode.MULTIRUN:
        from nbl import sweeps

        outcome = sweeps.play(list(hydra.overrides.task), Path(os.path.relpath(hydra.runtime.output_dir)))
        if outcome.stopped and hydra.launcher._target_.endswith("BasicLauncher"):
            raise KeyboardInterrupt  # other launchers' processes begin no further run
        return None if outcome.error or outcome.stopped else sweeps.objective(outcome.run)
    full = OmegaConf.create({**config, "hydra": {"runtime": {"choices": hydra.runtime.choices}}})
    from nbl.train import run

    _codes.append(run(configs.finish(full)))
    if _codes[-1] >= 128:
        raise KeyboardInterrupt
    return None


def _help() -> str:
    text = [_USAGE.format(prog=_prog())]
    for title, group in _LISTED.items():
        text.append(f"{title}:\n{configs.table(configs.choices(group))}\n")
    return "\n".join(text)


def _prog() -> str:
    name = Path(sys.argv[0]).name
    return f"python scripts/{name}" if name.endswith(".py") else name or "nbl-train"
