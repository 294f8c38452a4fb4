"""A bandit run in one line."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L

from nbl.envs.base import Environment
from nbl.loop import BanditLoop
from nbl.module import BanditModule
from nbl.results import Recorder, Rounds
from nbl.types import NblError

NOISE = (  # warnings of Lightning and its dependencies about things a bandit run does not have
    r".*does not have many workers.*",
    r".*directory .* exists and is not empty.*",
    r".*isinstance\(treespec, LeafSpec\).*",
    r".*You defined a `validation_step`.*",
    r".*GPU available but not used.*",
    r".*`srun` command is available on your system but is not used.*",
    r".*this fit will run with no optimizer.*",
    r"(?s).*Using ModelCheckpoint with manual optimization.*",
)


def hush() -> None:
    """No advertising and no advice on dataloaders; real warnings pass."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in NOISE:
        warnings.filterwarnings("ignore", message=message)


def fit(
    module: BanditModule,
    environment: Environment,
    horizon: int,
    *,
    callbacks: Sequence[L.Callback] | L.Callback = (),
    resume: str | Path | None = None,
    block: int = 1000,
    **trainer: Any,
) -> Rounds:
    """Play `horizon` rounds and return them.

        rounds = nbl.fit(NeuralUCB(dim=20, arms=4), ZhouH1(), horizon=500)
        rounds.cumulative()                              # regret, (replicas, horizon)

    Quiet by default: no logger, no progress bar, no checkpoints; any argument of `lightning.Trainer` changes that.

    Args:
        module: the algorithm.
        environment: where rounds come from; the same dim and replicas.
        horizon: T.
        callbacks: any Lightning callbacks.
        resume: a checkpoint to go on from.
        block: rounds in a Lightning epoch.
        **trainer: arguments of `lightning.Trainer`.
    """
    if isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1:
        raise NblError(f"nbl.fit(horizon={horizon!r}): need a whole number of rounds, at least 1.")
    callbacks = [callbacks] if isinstance(callbacks, L.Callback) else list(callbacks)
    recorder = next((c for c in callbacks if isinstance(c, Recorder)), None)
    if recorder is None:
        recorder = Recorder(trainer.pop("log_every_n_steps", None))
        callbacks = [*callbacks, recorder]
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "accelerator": "cpu" if module.device.type == "cpu" else "auto",
        "devices": 1,
        "max_epochs": -1,
    }
    with warnings.catch_warnings():
        hush()
        made = L.Trainer(max_steps=horizon, callbacks=list(callbacks), **{**quiet, **trainer})
        made.fit_loop = BanditLoop(made, environment, block)
        made.fit(module, ckpt_path=resume)
    return recorder.rounds
