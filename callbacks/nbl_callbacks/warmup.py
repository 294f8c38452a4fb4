"""Warm-ups: what is played before the algorithm has something to go by. They write `batch.arms` of a round.

Each counts its own rounds, begins again when `DoublingTrick` opens a phase, whichever of the two comes first in the
list of callbacks, and is cut, with a warning, where the phase or the run is shorter.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from nbl_callbacks.draws import uniform
from nbl_callbacks.gdesign import g_optimal, minimum_pulls, round_design
from nbl_callbacks.protocols import a_round


class Warmup(L.Callback, ABC):
    """Plays `choose` for the first rounds of each phase."""

    def __init__(self) -> None:
        self.round = 0  # rounds of this phase
        self.length: int | None = None  # rounds of warm-up in this phase; None before it begins
        self._batch: Any = None

    @abstractmethod
    def plan(self, batch: Any, room: int | None) -> int:
        """The length of the warm-up that begins with this round; `room` is the length of the phase, where known."""

    @abstractmethod
    def choose(self, module: L.LightningModule, batch: Any) -> Tensor:
        """The arms of round `self.round` of the phase; below 0 the algorithm chooses.    -> (R,)"""

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._batch = a_round(batch, self, "contexts", "arms", "mask")
        self.round += 1
        if self.length is None:
            self._begin(trainer, batch, None)
        assert self.length is not None
        if self.round <= self.length:
            batch.arms = self.choose(pl_module, batch)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._batch = None

    def on_restart(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, rounds: int | None) -> None:
        """A phase of so many rounds begins with this one."""
        late = self._batch is batch  # this round has been through our start hook already: once more
        self.round = 0
        self._begin(trainer, batch, rounds)
        if late:
            batch.arms = None
            self.on_train_batch_start(trainer, pl_module, batch, 0)

    def _begin(self, trainer: L.Trainer, batch: Any, rounds: int | None) -> None:
        left = trainer.max_steps - trainer.global_step if trainer.max_steps > 0 else None
        room = rounds if rounds is not None else left  # an anytime phase does not know when the run ends
        self.length = self.plan(batch, room)
        if room is not None and self.length > room:
            rank_zero_warn(
                f"{type(self).__name__}: a warm-up of {self.length} rounds is longer than the {room} rounds of this "
                "phase; it is cut there. Shorten it, or play longer."
            )
            self.length = room

    def state_dict(self) -> dict[str, Any]:
        return {"round": self.round, "length": self.length}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.round, self.length = state_dict["round"], state_dict["length"]


class RoundRobinWarmup(Warmup):
    """Each arm in turn, `times` times."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        if times < 1:
            raise ValueError(f"RoundRobinWarmup(times={times!r}): need a whole number, at least 1.")
        self.times = times

    def plan(self, batch: Any, room: int | None) -> int:
        return self.times * int(batch.contexts.shape[-2])

    def choose(self, module: L.LightningModule, batch: Any) -> Tensor:
        R, K = batch.contexts.shape[:2]
        return torch.full((R,), (self.round - 1) % K, device=batch.contexts.device)


class RandomWarmup(Warmup):
    """Any arm, uniformly, for so many rounds; any two in a duel (a module that says `duel = True`).

    A draw is a function of (seed, replica's seed, round of the phase).

    Args:
        rounds: of warm-up.
        seed: added to the replicas' own seeds (`module.seeds`, where it has them; else 0, 1, ...).
    """

    def __init__(self, rounds: int, seed: int = 0) -> None:
        super().__init__()
        if rounds < 1:
            raise ValueError(f"RandomWarmup(rounds={rounds!r}): need a whole number, at least 1.")
        self.rounds, self.seed, self.begun = rounds, seed, 0

    def plan(self, batch: Any, room: int | None) -> int:
        self.begun += 1  # a phase draws other numbers than the one before
        return self.rounds

    def choose(self, module: L.LightningModule, batch: Any) -> Tensor:
        R, K = batch.contexts.shape[:2]
        seeds = getattr(module, "seeds", range(R))
        path = (self.seed << 32) + (self.begun << 24) + self.round
        device = batch.contexts.device
        allowed = torch.ones(R, K, dtype=torch.long, device=device) if batch.mask is None else batch.mask.long()
        allowed, chosen = allowed.expand(R, K), []
        for turn in range(2 if getattr(module, "duel", False) else 1):
            drawn = [uniform(int(s), path + (turn << 52)) for s in seeds]
            u = torch.tensor(drawn, dtype=torch.float64, device=device)
            which = (u * allowed.sum(-1)).long()  # the how-manieth of the arms allowed
            chosen.append((allowed.cumsum(-1) > which.unsqueeze(-1)).long().argmax(-1))
            left = allowed.scatter(-1, chosen[-1].unsqueeze(-1), 0)  # the second of a duel is another, if there is one
            allowed = torch.where(left.sum(-1, keepdim=True) > 0, left, allowed)
        return chosen[0] if len(chosen) == 1 else torch.stack(chosen, -1)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "begun": self.begun}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.begun = state_dict["begun"]


class GOptimalWarmup(Warmup):
    """The rounded G-optimal design of the arms (arXiv:2510.10730, Algorithms 2 and 3), in an order whose beginnings
    look like the whole. Where the arms turn out to change, the widest arm of each round: argmax x^T V^-1 x.

    Args:
        tau: rounds; or, by Lemma B.4, ceil(1.5 iota^2 d / mu_min) from the next two.
        iota: so that every width is at most 1/iota after the warm-up.
        mu_min: the smallest slope of the link function (1 for a linear model).
        min_pulls: a floor on each arm's pulls, which makes the warm-up longer; `paper` is line 13's r(a)/K.
        a: of r(a).
        tol: of the design.
        ridge: V begins at ridge * I where arms change.
    """

    def __init__(
        self,
        tau: int | None = None,
        iota: float | None = None,
        mu_min: float = 1.0,
        min_pulls: int | str | None = None,
        a: float = 0.5,
        tol: float = 1e-2,
        ridge: float = 1.0,
    ) -> None:
        super().__init__()
        if (tau is None) == (iota is None):
            raise ValueError(f"GOptimalWarmup(tau={tau}, iota={iota}): give one of the two.")
        for name, value in {"tau": tau, "iota": iota, "mu_min": mu_min, "ridge": ridge, "tol": tol}.items():
            if value is not None and not value > 0:
                raise ValueError(f"GOptimalWarmup({name}={value!r}): need a number above 0.")
        if tau is not None and not isinstance(tau, int):
            raise ValueError(f"GOptimalWarmup(tau={tau!r}): need a whole number of rounds.")
        if min_pulls not in ("paper", None) and not (isinstance(min_pulls, int) and min_pulls >= 0):
            raise ValueError(f"GOptimalWarmup(min_pulls={min_pulls!r}): need a whole number, `paper`, or None.")
        if not 0 < a < 1:
            raise ValueError(f"GOptimalWarmup(a={a!r}): need a number between 0 and 1.")
        self.tau, self.iota, self.mu_min, self.min_pulls, self.a = tau, iota, mu_min, min_pulls, a
        self.tol, self.ridge = tol, ridge
        self.arms: Tensor | None = None  # of the first round, (R, K, d)
        self.weights: Tensor | None = None  # the design, (R, K)
        self.order: Tensor | None = None  # what to play, (R, length); -1: this replica has done. None: arms change
        self.inverse: Tensor | None = None  # V^-1, (R, d, d)

    def plan(self, batch: Any, room: int | None) -> int:
        x = batch.contexts
        R, K, d = x.shape
        tau = self.tau or math.ceil(1.5 * (self.iota or 0.0) ** 2 * d / self.mu_min)
        self.inverse = torch.eye(d, dtype=torch.float64, device=x.device).expand(R, d, d) / self.ridge
        if self.arms is not None and self.order is None:  # they changed in an earlier phase
            return tau
        if self.arms is None or not torch.equal(self.arms, x):
            self.arms = x.clone()
            allowed = x if batch.mask is None else x * batch.mask.to(x).expand(R, K).unsqueeze(-1)
            self.weights = g_optimal(allowed, self.tol).weights
        assert self.weights is not None
        floor = minimum_pulls(d, K, self.a) if self.min_pulls == "paper" else self.min_pulls
        cut = tau if room is None else min(tau, room)  # a design of the rounds there are
        self.order = spread(round_design(self.weights, cut, None if floor is None else int(floor)))
        return tau if cut < tau else self.order.shape[1]

    def choose(self, module: L.LightningModule, batch: Any) -> Tensor:
        x: Tensor = batch.contexts
        assert self.arms is not None and self.inverse is not None
        if self.order is not None and not torch.equal(self.arms, x):
            self.order = None
        if self.order is not None:
            arms = self.order.to(x.device)[:, self.round - 1]
        else:
            self.inverse = self.inverse.to(x.device)
            width = (torch.matmul(x.double(), self.inverse) * x.double()).sum(-1)  # x^T V^-1 x    (R, K)
            arms = (width if batch.mask is None else width.masked_fill(~batch.mask, -torch.inf)).argmax(-1)
        played = x[torch.arange(len(x), device=x.device), arms.clamp_min(0)].double().unsqueeze(-1)
        b = torch.bmm(self.inverse.to(x.device), played)
        self.inverse = self.inverse.to(x.device) - torch.bmm(b, b.mT) / (1 + torch.bmm(played.mT, b))
        return arms

    def state_dict(self) -> dict[str, Any]:
        kept = {"arms": self.arms, "weights": self.weights, "order": self.order, "inverse": self.inverse}
        return {**super().state_dict(), **kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for name in ("arms", "weights", "order", "inverse"):
            setattr(self, name, state_dict[name])


def spread(pulls: Tensor) -> Tensor:
    """Pulls in an order whose every beginning has about their shares; -1 fills up shorter rows.    (R, K) -> (R, n)"""
    rows = []
    for counts in pulls.cpu():
        arms = torch.repeat_interleave(torch.arange(len(counts)), counts)
        nth = torch.arange(len(arms)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        when = (nth + 0.5) / counts[arms]
        rows.append(arms[when.sort(stable=True).indices])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1).to(pulls.device)
