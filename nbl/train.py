"""One run from a composed config: build, play, write, say where it is. `nbl.cli` reads the command line."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import DictConfig, OmegaConf

from nbl import checkpoint, devices, loggers, results
from nbl.config import unknown
from nbl.loop import BanditLoop
from nbl.run import hush
from nbl.shards import Members, Share
from nbl.types import NblError


def run(config: DictConfig, start: Path | None = None) -> int:
    """Play the recipe and write what it leaves; returns the exit code. `start` is the checkpoint to resume from."""
    hush()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    torch.set_flush_denormal(True)  # units that a ridge has put to sleep decay below 1e-38, where arithmetic is slow
    share = devices.place(_plain(config.trainer), config.replicas, config.seed)
    if share.world > 1 and config.threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(config.threads))  # else Lightning's launcher chooses
    if (
        share.rank == 0
        and config.out
        and start is None
        and any((Path(config.out) / name).exists() for name in (checkpoint.FOLDER, "summary.json"))
    ):
        given = config.out
        raise NblError(f"out={given} already holds a run. Choose another folder, or continue that run: resume={given}")
    ours = {"replicas": share.count, "seed": config.seed + share.first}
    environment = build(config.env, "env", **ours)
    module = build(
        config.algorithm,
        "algorithm",
        dim=environment.dim,
        arms=environment.arms,
        fixed_arms=environment.fixed_arms,
        horizon=config.horizon,
        **({} if environment.blocks is None else {"blocks": environment.blocks}),
        **ours,
    )
    if share.by_members:
        module.share_members(Members(share.rank, share.world))
    recorder = results.Recorder(config.log_every)
    with _claimed(config) if share.rank == 0 else nullcontext(Path(config.out or ".")) as out:
        config.out, config.id = str(out), config.get("id") or uuid.uuid4().hex[:8]
        trainer = _trainer(config, recorder, out, share)
        trainer.fit_loop = loop = BanditLoop(trainer, environment)

    if share.rank == 0:
        results.write_text(out / "config.yaml", OmegaConf.to_yaml(config))
        trainer.loggers = loggers.start(trainer.loggers, _plain(config))
    failure: NblError | None = None
    with _stopping(loop) as received:
        try:
            trainer.fit(module, ckpt_path=str(start) if start else None)
        except SIGTERMException:
            received.append(signal.SIGTERM)
        except SystemExit:  # Lightning's answer to Ctrl-C
            received.append(signal.SIGINT)
        except NblError as error:
            failure = error

    rounds = recorder.rounds
    whole = share.world == 1 or recorder.joined  # a run that was cut off has no table of all processes
    received = received or [loop.asked] * bool(loop.asked)  # another process may have got it
    about = {**_plain(config.choices), "recipe": config.recipe, "horizon": config.horizon, "replicas": config.replicas}
    if share.rank > 0 or not whole:
        pass  # the first process writes
    elif rounds.played:
        summary = results.write(out, rounds, recorder.rows, about)
        picture = out / f"{rounds.curve()[0]}.png"
        sync = loggers.finish(trainer.loggers, summary, picture)
        report(summary, rounds.played, picture, sync)
    else:
        print(f"No round was played: there is nothing to write to {out}.", file=sys.stderr)
    if failure is not None:
        who = f" (process {share.rank} of {share.world})" if share.world > 1 else ""
        print(f"Error in round {rounds.played + 1} of {config.horizon}{who}: {failure}", file=sys.stderr)
        if share.world > 1 and share.rank == 0 and any((out / checkpoint.FOLDER).glob("*.ckpt")):
            print(f"Go on, on any number of processes, with: resume={out}", file=sys.stderr)
        return 1
    if received and rounds.played < config.horizon:
        kept = any((out / checkpoint.FOLDER).glob("*.ckpt"))
        how = f"Go on with: resume={out}" if kept else "No checkpoint was written yet: start anew."
        who = signal.Signals(received[0]).name
        if share.rank == 0:
            print(f"Stopped by {who} after round {rounds.played} of {config.horizon}. {how}", file=sys.stderr)
        return 128 + received[0]
    return 0


def build(config: DictConfig, key: str, **given: Any) -> Any:
    """The object that `_target_` names. What its constructor refuses becomes one clear message."""
    from hydra.errors import InstantiationException
    from hydra.utils import get_object, instantiate

    try:
        return instantiate(config, _convert_="all", **given)
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, NblError):
            raise NblError(f"{key}: {cause}") from error
        if isinstance(cause, TypeError) and (name := _unexpected(cause)):
            names = _arguments(get_object(config._target_)) - set(given)
            raise NblError(f"{key}: {unknown(f'argument of {config._target_}', name, names)}") from error
        if isinstance(cause, ValueError | TypeError | ImportError | RuntimeError | MisconfigurationException):
            raise NblError(f"{key}: {cause}") from error
        raise NblError(f"{key}: {str(error).splitlines()[0]}") from error


def report(summary: dict[str, Any], played: int, picture: Path, sync: str | None) -> None:
    """The closing table, on a terminal or not."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{summary['recipe']}: {summary['algorithm']} on {summary['env']}", title_justify="left")
    for name in ("", "mean", "sd", "95% interval"):
        table.add_column(name, justify="right" if name else "left")
    named = {"regret": "regret", "weak_regret": "weak regret", "reward": "reward"}
    rows = {f"{label}, {played} rounds": (summary[name], 1) for name, label in named.items() if name in summary}
    if summary["regret"]["mean"] is None:  # a log does not tell it: show what a round brought instead
        rows = {f"reward, {played} rounds": (summary["reward"], 1), "reward a round": (summary["reward"], played)}
    for label, (found, per) in rows.items():
        low, high = found["ci95"] or (None, None)
        interval = f"{_number(low, per)} .. {_number(high, per)}" if low is not None else "-"
        table.add_row(label, _number(found["mean"], per), _number(found["sd"], per), interval)
    console = Console(soft_wrap=True)
    console.print(table)
    speed = summary["rounds_per_second"] or 0.0
    console.print(
        f"Replicas: {summary['replicas']}. {summary['wall_seconds']:.1f} s, {speed:.0f} rounds/s "
        f"({summary['replica_rounds_per_second'] or 0:.0f} replica-rounds/s)",
        highlight=False,
    )
    console.print(
        f"Results: {picture.parent}/ (summary.json, rounds.parquet, metrics.csv, {picture.name})", highlight=False
    )
    if sync:
        console.print(f"W&B ran offline. To upload: {sync}", highlight=False)


def _trainer(config: DictConfig, recorder: results.Recorder, out: Path, share: Share) -> L.Trainer:
    callbacks: list[Callback] = [recorder]
    for name, part in config.callbacks.items():
        if part is not None:
            callbacks.append(build(part, f"callbacks.{name}"))
    every = config.checkpoint.every if config.checkpoint.every is not None else max(1, config.horizon // 10)
    if every:
        callbacks.append(checkpoint.RoundCheckpoint(out / checkpoint.FOLDER, every, config.checkpoint.keep))
    parts = {name: part for name, part in (config.logger or {}).items() if part is not None and share.rank == 0}
    built = [build(part, f"logger.{name}", out=str(out), id=config.id) for name, part in parts.items()]
    options: dict[str, Any] = {
        "max_steps": config.horizon,
        "max_epochs": -1,
        "logger": [logger for logger in built if logger is not None],
        "callbacks": callbacks,
        "plugins": [checkpoint.AtomicCheckpointIO(), *devices.plugins(share.world)],
        "enable_checkpointing": bool(every),
        "enable_progress_bar": any(isinstance(callback, ProgressBar) for callback in callbacks),
        "default_root_dir": str(out),
    }
    chosen = _plain(config.trainer)
    if share.world > 1:
        options["strategy"] = devices.Together(share)
        chosen.pop("strategy", None)
    target = OmegaConf.create({"_target_": "lightning.Trainer", **chosen})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*AMP with fp16 is not supported on CPU.*")  # refused below
        trainer: L.Trainer = build(target, "trainer", **{k: v for k, v in options.items() if k not in chosen})
    if str(chosen.get("precision")).startswith("16") and trainer.precision == "bf16-mixed":
        raise NblError(f"trainer.precision={chosen['precision']} needs a GPU. On the CPU use bf16-mixed, or 32-true.")
    return trainer


@contextmanager
def _stopping(loop: BanditLoop) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM end the run after the round being played; a second Ctrl-C ends it now."""
    received: list[int] = []

    def stop(signum: int, frame: Any) -> None:
        if received and signum == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(signum)
        loop.ask(signum)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {signum: signal.signal(signum, stop) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def _claimed(config: DictConfig) -> Iterator[Path]:
    """The run's folder, made here so that no other run takes it; unmade if what follows fails."""
    now = f"runs/{config.recipe}/{datetime.now():%Y-%m-%d_%H-%M-%S}"
    for out in map(Path, [config.out] if config.out else [now, *(f"{now}_{n}" for n in range(2, 1000))]):
        missing = [path for path in (out, *out.parents) if not path.exists()]
        try:
            out.mkdir(parents=True, exist_ok=bool(config.out))
        except FileExistsError as error:
            if config.out or not out.is_dir():
                raise NblError(f"out={out} is a file. Choose a folder.") from error
            continue
        try:
            yield out
        except BaseException:
            for path in missing:
                with suppress(OSError):
                    path.rmdir()
            raise
        return


def _arguments(target: Any) -> set[str]:
    """What the constructor takes, `**kwargs` that go on to a base class included."""
    ours = [c for c in getattr(target, "__mro__", ()) if c.__module__.split(".")[0] not in ("torch", "builtins")]
    found = [inspect.signature(c.__init__) for c in ours]
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    parts = [part for signature in found or [inspect.signature(target)] for part in signature.parameters.values()]
    return {part.name for part in parts if part.kind in named} - {"self"}


def _unexpected(error: TypeError) -> str | None:
    name = str(error).partition("unexpected keyword argument ")[2]
    return name.strip("'\". ").split("'")[0] if name else None


def _plain(config: DictConfig) -> dict[str, Any]:
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return dict(plain)


def _number(value: float | None, per: int = 1) -> str:
    if value is None:
        return "-"
    return f"{value / per:.4f}" if per > 1 else f"{value:.1f}" if abs(value) < 1e6 else f"{value:.3g}"
