"""Stop when there is nothing left to find out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from nbl_callbacks.delay import DelayedFeedback
from nbl_callbacks.protocols import Actor, Unsuitable, a_round, require


class StopWhenSettled(L.Callback):
    """Ends the run once every replica has settled for `patience` rounds of a phase.

    Settled is: the greedy arm of the same arms did not change (asks the module for `act(contexts, exploit=True)`; where
    the arms themselves change it never settles); or, with `slope`, the mean regret of the last `patience` rounds is at
    most that.

    Rounds from which nothing can be told do not count: those with a forced arm (`batch.arms`, of a warm-up), and those
    held back (`batch.hold`) until the learner was first told something in this phase: by a round that is not held, or
    by DelayedFeedback. (A callback of yours that holds every round never settles.)

    Args:
        patience: rounds.
        slope: regret a round that is small enough; None watches the greedy arm.
        every: rounds between two looks at the greedy arm.
    """

    replica_axes: Mapping[str, int] = {"regret": 1}  # of what `state_dict` holds; elsewhere replicas come first

    def __init__(self, patience: int = 1000, slope: float | None = None, every: int = 1) -> None:
        if patience < 1 or every < 1:
            raise ValueError(f"StopWhenSettled(patience={patience}, every={every}): need whole numbers, at least 1.")
        self.patience, self.slope, self.every = patience, slope, every
        self.round, self.calm = 0, 0  # rounds of this phase, rounds since the greedy arm changed
        self.arms: Tensor | None = None  # the greedy ones, (R,)
        self.contexts: Tensor | None = None
        self.regret: list[Tensor] = []  # of the last rounds, (R,) each
        self.told, self.out = False, 0  # whether the learner was told something; rounds out in DelayedFeedback

    @property
    def state_key(self) -> str:
        return f"StopWhenSettled[{self.patience},{self.slope}]"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self.slope is None:
            require(pl_module, Actor, self)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        a_round(batch, self, "contexts", "feedback")
        self.round += 1
        agree = trainer.strategy.reduce_boolean_decision  # with several processes: in all of them
        if not agree(self._counts(trainer, batch)):
            return
        if self._flat(batch, agree) if self.slope is not None else self._same(cast(Actor, pl_module), batch, agree):
            rank_zero_info(f"StopWhenSettled: settled for {self.patience} rounds; stopping after {self.round}.")
            trainer.should_stop = True

    def on_restart(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, rounds: int | None) -> None:
        """What was settled in the phase before says nothing about this one."""
        self.round, self.calm, self.arms, self.contexts, self.regret = 0, 0, None, None, []
        self.told, self.out = False, 0

    def _counts(self, trainer: L.Trainer, batch: Any) -> bool:
        out = sum(
            len(callback.out) for callback in cast(Any, trainer).callbacks if isinstance(callback, DelayedFeedback)
        )
        # a held round adds one to what is out: no more than before, and some of it was told
        self.told = self.told or not getattr(batch, "hold", False) or 0 < out == self.out or out < self.out
        self.out = out
        forced = getattr(batch, "arms", None)
        return self.told and (forced is None or not bool((forced >= 0).any()))

    def _same(self, module: Actor, batch: Any, agree: Callable[[bool], bool]) -> bool:
        if self.round % self.every:
            return False
        arms: Tensor = module.act(batch.contexts, exploit=True, mask=batch.mask).arms
        then = (self.arms, self.contexts)
        same = all(a is not None and torch.equal(a, b) for a, b in zip(then, (arms, batch.contexts), strict=True))
        self.calm = self.calm + self.every if agree(same) else 0
        self.arms, self.contexts = arms.clone(), batch.contexts.clone()
        return self.calm >= self.patience

    def _flat(self, batch: Any, agree: Callable[[bool], bool]) -> bool:
        if batch.feedback.regret is None:
            raise Unsuitable("StopWhenSettled(slope): this environment does not say what the best arm was.")
        self.regret = [*self.regret[-self.patience + 1 :], batch.feedback.regret.clone()][-self.patience :]
        if len(self.regret) < self.patience:
            return False
        assert self.slope is not None
        return agree(bool((torch.stack(self.regret).double().mean(0) <= self.slope).all()))

    def state_dict(self) -> dict[str, Any]:
        regret = torch.stack(self.regret) if self.regret else None
        kept = {"arms": self.arms, "contexts": self.contexts, "regret": regret}
        return {"round": self.round, "calm": self.calm, "told": self.told, "out": self.out, **kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.round, self.calm, regret = state_dict["round"], state_dict["calm"], state_dict["regret"]
        self.arms, self.contexts = state_dict["arms"], state_dict["contexts"]
        self.regret = [] if regret is None else list(regret.unbind())
        self.told, self.out = state_dict.get("told", True), state_dict.get("out", 0)
