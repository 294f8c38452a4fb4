"""The doubling trick: an algorithm made for a known horizon becomes anytime, by restarts at growing intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from nbl_callbacks.protocols import Restartable, Unsuitable, restarted

GOLDEN = (3 + math.sqrt(5)) / 2  # b, the factor with the smallest loss


class Phase(NamedTuple):
    """Begins with round `start`, lasts `length` rounds, and is given `horizon` as T."""

    start: int
    length: int
    horizon: int


class DoublingTrick(L.Callback):
    """Restarts at the start of each phase.

    `geometric`: T_i = floor(T_0 b^i); phases are rounds 1..T_0, T_0+1..T_1, ..., each with its length for horizon
    (arXiv:2510.10730, section 6). `powers`: restarts at t = 2^s with horizon 2^(s+1) (NeuralTS, arXiv:2010.00827,
    Remark 3.9). A module with `restart` is restarted by it. Any other Lightning module gets new parameters
    (`reset_parameters` of its layers, drawn from `seed` and the phase) and new optimisers; a round is then a batch.

    Args:
        schedule: geometric or powers.
        first: T_0.
        factor: b.
        scale: hyper-parameters that follow the phase: name -> c for c log(horizon), natural log; whole numbers stay
            whole, at least 1. Names that the module does not have in `may_change` are left out with a warning.
        keep_history: keep the data, and train anew on them (beyond the papers); `members` then keeps its first value.
        seed: of new parameters in a module without `restart`.
    """

    def __init__(
        self,
        schedule: str = "geometric",
        first: int = 100,
        factor: float = GOLDEN,
        scale: Mapping[str, float] | None = None,
        keep_history: bool = False,
        seed: int = 0,
    ) -> None:
        if schedule not in ("geometric", "powers"):
            raise ValueError(f"DoublingTrick(schedule={schedule!r}): choose geometric or powers.")
        if first < 1 or not first * (factor - 1) > 1:
            raise ValueError(f"DoublingTrick(first={first}, factor={factor}): need first * (factor - 1) above 1.")
        self.schedule, self.first, self.factor = schedule, first, factor
        self.scale = {name: c for name, c in (scale or {}).items() if c is not None}
        self.keep_history, self.seed = keep_history, seed
        self.round, self.opened = 0, 0  # rounds begun, phases opened

    def phase(self, i: int) -> Phase:
        """The i-th phase, from 0."""
        if self.schedule == "powers":
            return Phase(2**i, 2**i, 2 ** (i + 1))
        end = math.floor(self.first * self.factor**i)
        begun = math.floor(self.first * self.factor ** (i - 1)) if i else 0
        return Phase(begun + 1, end - begun, end - begun)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if isinstance(pl_module, Restartable):
            if fixed := sorted(set(self.scale) - set(getattr(pl_module, "may_change", ()))):
                rank_zero_warn(
                    f"DoublingTrick: {type(pl_module).__name__} cannot change {', '.join(fixed)}; left as it is."
                )
            return
        if self.scale or self.keep_history:
            raise Unsuitable(
                "DoublingTrick(scale, keep_history) needs a module that is Restartable; "
                f"{type(pl_module).__name__} has no `restart`. Write it (see nbl_callbacks.protocols.Restartable) or "
                "leave out these arguments."
            )
        for name, part in pl_module.named_modules():
            if _learns(part) and not hasattr(part, "reset_parameters"):
                raise Unsuitable(
                    f"DoublingTrick cannot begin anew: {name or type(pl_module).__name__} has parameters and no "
                    f"`reset_parameters`. Write it, or write `restart` (nbl_callbacks.protocols.Restartable) of "
                    f"{type(pl_module).__name__}."
                )

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.round += 1
        while self.phase(self.opened).start < self.round:  # passed over: the schedule was changed on resuming
            self.opened += 1
        phase = self.phase(self.opened)
        if self.round == phase.start:
            self.opened += 1
            if isinstance(pl_module, Restartable):
                keep: dict[str, Any] = {"keep_history": True} if self.keep_history and self.opened > 1 else {}
                pl_module.restart(phase.horizon, **keep, **self._scaled(pl_module, phase.horizon))
            elif self.opened > 1:
                self._renew(trainer, pl_module)
            restarted(trainer, pl_module, batch, phase.length)

    def _scaled(self, module: Any, horizon: int) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for name, c in self.scale.items():
            kept = self.keep_history and self.opened > 1 and name == "members"  # each member keeps its own data
            if name in getattr(module, "may_change", ()) and not kept:
                value = float(c) * math.log(horizon)
                whole = isinstance(getattr(module, name, None), int)
                changes[name] = max(1, round(value)) if whole else value
        return changes

    def _renew(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """New parameters, the same on every rank, and new optimisers and learning-rate schedules."""
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed((self.seed << 16) + self.opened)
            module.apply(_reset)
        module.zero_grad(set_to_none=True)
        trainer.strategy.setup_optimizers(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"round": self.round, "opened": self.opened}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.round, self.opened = state_dict["round"], state_dict["opened"]


def _learns(part: nn.Module) -> bool:
    """Whether a part has parameters of its own that are not all frozen."""
    return any(p.requires_grad for p in part.parameters(recurse=False))


def _reset(part: nn.Module) -> None:
    if _learns(part) and hasattr(part, "reset_parameters"):
        cast(Any, part).reset_parameters()


def doubling_constant(gamma: float, delta: float, first: int = 100, factor: float = GOLDEN) -> float:
    """l(gamma, delta, T_0, b): by how much restarts multiply a regret bound of order T^gamma (log T)^delta.

    arXiv:2510.10730, Lemma E.1 (Besson and Kaufmann 2018, Theorem 4).
    """
    if not 0 < gamma < 1 or delta < 0 or factor <= 1 or (delta > 0 and first * (factor - 1) <= 1):
        raise ValueError(
            f"doubling_constant(gamma={gamma}, delta={delta}, first={first}, factor={factor}): "
            "need 0 < gamma < 1, delta >= 0, factor > 1 and first * (factor - 1) > 1."
        )
    grown = first * (factor - 1)
    logs = (math.log(grown + 1) / math.log(grown)) ** delta if delta else 1.0
    return logs * float(factor**gamma * (factor - 1) ** gamma / (factor**gamma - 1))
