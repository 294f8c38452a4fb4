"""The regret so far, as a picture that is renewed while the run goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from nbl_callbacks.protocols import Unsuitable, a_round


class RegretPlot(L.Callback):
    """Draws cumulative regret, its mean over replicas with a band of one standard deviation, to a file and to loggers
    that take pictures (`log_image`, as W&B's does).

    Args:
        file: where to draw; by default `regret.png` in the Trainer's folder.
        every: rounds between two pictures; by default a tenth of the run.
        points: at most so many points on the curve, and of state.
    """

    replica_axes: Mapping[str, int] = {"curve": 1}  # of what `state_dict` holds; elsewhere replicas come first

    def __init__(self, file: str | os.PathLike[str] | None = None, every: int | None = None, points: int = 500) -> None:
        if (every is not None and every < 1) or points < 2:
            raise ValueError(f"RegretPlot(every={every}, points={points}): need every >= 1 and points >= 2.")
        self.file, self.every, self.points = None if file is None else os.fspath(file), every, points
        self.round, self.step = 0, 1  # rounds played, rounds a point
        self.total: Tensor | None = None  # regret so far, (R,)
        self.curve: list[Tensor] = []  # `total` after each `step` rounds

    @property
    def state_key(self) -> str:
        return f"RegretPlot[{self.file}]"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        try:
            import matplotlib.figure  # noqa: F401
        except ImportError as error:
            raise ImportError("RegretPlot draws with matplotlib: pip install 'nbl-callbacks[plot]'.") from error

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        regret = a_round(batch, self, "feedback").feedback.regret
        if regret is None:
            raise Unsuitable("RegretPlot: this environment does not say what the best arm was, so there is no regret.")
        self.round += 1
        self.total = regret.double() if self.total is None else self.total + regret
        if self.round % self.step == 0:
            self.curve.append(self.total.clone())
        if len(self.curve) > self.points:  # half as many, twice as far apart
            self.curve, self.step = self.curve[1::2], 2 * self.step
        if self.round % (self.every or max(1, trainer.max_steps // 10 if trainer.max_steps > 0 else 1000)) == 0:
            self.draw(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.curve:
            self.draw(trainer)

    def draw(self, trainer: L.Trainer) -> None:
        """Write the picture, and hand it to the loggers."""
        if not self.curve:
            return
        values = torch.stack(self.curve).cpu()
        if callable(join := getattr(trainer.strategy, "join", None)):  # replicas shared out over processes
            values = join("regret plot", self.round, {"curve": values}, 1)["curve"]
        if not trainer.is_global_zero:
            return
        from matplotlib.figure import Figure

        rounds = [self.step * (n + 1) for n in range(len(self.curve))]
        mean, sd = values.mean(1), values.std(1, correction=0)
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(rounds, mean.tolist())
        axes.fill_between(rounds, (mean - sd).tolist(), (mean + sd).tolist(), alpha=0.25)
        axes.set(xlabel="round", ylabel="cumulative regret", title=f"{values.shape[1]} replicas, round {self.round}")
        file = Path(self.file) if self.file else Path(trainer.default_root_dir) / "regret.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file.with_suffix(".part"), format=file.suffix.lstrip(".") or "png", dpi=110)
        os.replace(file.with_suffix(".part"), file)
        for logger in trainer.loggers:
            log_image = getattr(logger, "log_image", None)
            if log_image is not None:
                log_image(key="regret", images=[str(file)])

    def state_dict(self) -> dict[str, Any]:
        curve = torch.stack(self.curve) if self.curve else None
        return {"round": self.round, "step": self.step, "total": self.total, "curve": curve}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.round, self.step, self.total = state_dict["round"], state_dict["step"], state_dict["total"]
        self.curve = [] if state_dict["curve"] is None else list(state_dict["curve"].unbind())
