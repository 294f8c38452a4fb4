"""When to retrain."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import lightning as L
import torch
from torch import Tensor

from nbl_callbacks.protocols import Informed, Unsuitable, a_round, require


class RetrainSchedule(L.Callback):
    """Lets a round end without retraining (`batch.learn = False`) unless it is time. Observations are never lost.

    Counts the rounds of a phase: a restart begins the schedule anew. A schedule of the module's own still applies.

    Args:
        every: retrain every n rounds (the default, n = 1, is every round).
        factor: at rounds 1, then each at least `factor` times the one before, instead.
        growth: when det of the confidence matrix of some replica has grown by this factor since the last retraining,
            instead; asks the module for `logdet`.
    """

    def __init__(self, every: int | None = None, factor: float | None = None, growth: float | None = None) -> None:
        if sum(kind is not None for kind in (every, factor, growth)) > 1:
            raise ValueError(f"RetrainSchedule(every={every}, factor={factor}, growth={growth}): choose one.")
        if every is not None and every < 1:
            raise ValueError(f"RetrainSchedule(every={every!r}): need a whole number, at least 1.")
        for name, value in (("factor", factor), ("growth", growth)):
            if value is not None and not value > 1:
                raise ValueError(f"RetrainSchedule({name}={value!r}): need a number above 1.")
        self.every, self.factor, self.growth = every or 1, factor, growth
        self.round, self.next = 0, 1
        self.mark: Tensor | None = None  # log det at the last retraining, (R,)
        self._batch: Any = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self.growth is not None:
            require(pl_module, Informed, self)
            if cast(Any, pl_module).logdet() is None:
                raise Unsuitable(
                    f"RetrainSchedule(growth={self.growth}): {type(pl_module).__name__} has no confidence matrix "
                    "(its logdet() is None). Use every= or factor=."
                )

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._batch = a_round(batch, self, "learn")
        self.round += 1
        batch.learn = self.due(pl_module, partial(trainer.strategy.reduce_boolean_decision, all=False))

    def on_restart(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, rounds: int | None) -> None:
        """A phase begins with this round."""
        self.round, self.next, self.mark = 0, 1, None
        if self._batch is batch:  # been through our start hook already: once more
            self.on_train_batch_start(trainer, pl_module, batch, 0)

    def due(self, module: L.LightningModule, anyone: Callable[[bool], bool] = bool) -> bool:
        """Whether round `self.round` retrains; `anyone` asks the other processes, where there are some."""
        if self.growth is not None:
            now = cast(Informed, module).logdet().detach().double().cpu()
            grown = anyone(self.mark is None or bool((now - self.mark >= math.log(self.growth)).any()))
            self.mark = now.clone() if grown else self.mark
            return grown
        if self.factor is not None:
            if self.round < self.next:
                return False
            self.next = max(self.round + 1, math.ceil(self.round * self.factor))
            return True
        return self.round % self.every == 0

    def state_dict(self) -> dict[str, Any]:
        mark = None if self.mark is None else torch.clone(self.mark)
        return {"round": self.round, "next": self.next, "mark": mark}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.round, self.next, self.mark = state_dict["round"], state_dict["next"], state_dict["mark"]
