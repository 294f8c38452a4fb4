"""Feedback that comes late."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn

from nbl_callbacks.draws import uniform
from nbl_callbacks.protocols import Deliverable, Learner, a_round, require

LAWS: dict[str, Callable[[float, float], int]] = {
    "constant": lambda n, u: round(n),
    "uniform": lambda n, u: int(u * (2 * n + 1)),
    "geometric": lambda n, u: int(math.log(u) / math.log(n / (1 + n))) if n else 0,
}


class DelayedFeedback(L.Callback):
    """What was played in round t is told to the learner at the end of round t + delay, by the decision's ids.

    The delay is the same for all replicas, and a function of (seed, round). What is due is delivered in the order in
    which it was played, and the module may then learn. What is still out when the last round ends is delivered
    then; when a run is stopped before, it stays in the checkpoint, and the resumed run delivers it in time. A restart
    does not lose it either: it is told to the new phase.

    Args:
        rounds: n, the delay, or its mean.
        law: constant; uniform on 0..2n; geometric with mean n; or batch: everything is told every n rounds.
        seed: of the draws.
        name: tells two of them apart.
    """

    def __init__(self, rounds: int = 10, law: str = "constant", seed: int = 0, name: str = "") -> None:
        if not isinstance(rounds, int) or rounds < 0 or law not in (*LAWS, "batch") or (law == "batch" and rounds < 1):
            raise ValueError(
                f"DelayedFeedback(rounds={rounds!r}, law={law!r}): need rounds of 0 or more (batch: 1), and a law of "
                f"{', '.join(LAWS)}, batch."
            )
        self.rounds, self.law, self.seed, self.name = rounds, law, seed, name
        self.round = 0
        self.out: list[dict[str, Any]] = []  # what is not yet told, in the order it was played
        self._ours = False  # whether it is we who hold this round

    @property
    def state_key(self) -> str:
        return f"DelayedFeedback[{self.name}]"  # not the delay: a resumed run may change it and lose nothing

    def delay(self, t: int) -> int:
        """Of what is played in round t."""
        if self.law == "batch":
            return -t % self.rounds
        return LAWS[self.law](self.rounds, uniform(self.seed, t))

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        require(pl_module, Deliverable, self)
        require(pl_module, Learner, self)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        a_round(batch, self, "contexts", "hold", "weight", "decision", "feedback")
        self.round += 1
        self._ours = not batch.hold and self.delay(self.round) > 0
        batch.hold = batch.hold or self._ours

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._ours:
            ids = getattr(batch.decision, "ids", None)
            self.out.append(
                {
                    "due": self.round + self.delay(self.round),
                    "ids": torch.tensor([self.round]) if ids is None else ids.clone(),
                    "contexts": batch.contexts.clone(),
                    "arms": batch.decision.arms.clone(),
                    "reward": batch.feedback.reward.clone(),
                    "weight": tuple(batch.weight) if isinstance(batch.weight, tuple) else batch.weight,
                }
            )
        self._deliver(trainer, pl_module, self.round, learn=batch.learn)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.out:
            return
        if 0 < trainer.max_steps <= trainer.global_step:
            self._deliver(trainer, pl_module, None, learn=True)
        else:
            rank_zero_warn(
                f"DelayedFeedback: stopped with {len(self.out)} rounds not yet told; a checkpoint taken now has them."
            )

    def _deliver(self, trainer: L.Trainer, module: Any, now: int | None, learn: bool) -> None:
        due = [item for item in self.out if now is None or item["due"] <= now]
        if not due:
            return
        self.out = [item for item in self.out if now is not None and item["due"] > now]
        with trainer.precision_plugin.train_step_context():
            for item in due:
                module.deliver(item["ids"], item["contexts"], item["arms"], item["reward"], item["weight"])
            if learn:
                module.learn()
            elif hasattr(module, "rest"):
                module.rest()

    def state_dict(self) -> dict[str, Any]:
        return {"round": self.round, "out": [dict(item) for item in self.out]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.round, self.out = state_dict["round"], list(state_dict["out"])
