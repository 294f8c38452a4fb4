"""What NeuralGCB and SupNeuralUCB share: one network a level, each trained on the rounds of its level only.

All levels of all replicas are one stack of networks (R x levels) and one confidence matrix (`nbl.levels.Levels`). A
round goes down the levels with masks, and ends in one of them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nbl import ntk
from nbl.algorithms.neural import NeuralBandit
from nbl.gradient import Gradient
from nbl.history import Data, take
from nbl.levels import Levels
from nbl.module import Score, Weight
from nbl.types import NblError
from nbl.values import simple, whole


@dataclass
class Walk:
    """Where a round went: level (from 0) and branch, (R, q) each, and what the arms look like from there, (R, q, K)."""

    level: Tensor
    branch: Tensor
    score: Tensor
    mean: Tensor
    width: Tensor


class LevelBandit(NeuralBandit):
    """A neural bandit with levels.

    Args:
        levels: how many; None is ceil(log2 T), for which `horizon` must be known. A restart keeps their number.
        beta: confidence radius; None is Theorem 2's S + 2 nu sqrt(log(1/delta)) (`nbl.ntk.radius`).
        norm: S, of the reward function.
        noise: nu, the rewards' standard deviation.
        delta: the chance of a miss.
        batch: when level r retrains. {"first": q, "factor": b}: once q b^(r-1) rounds were added to it since it last
            did; {"logdet": c}: once the determinant of its confidence matrix has grown by the factor c.
        lam: lambda, the ridge.
        **neural: net, fit and the problem: see `NeuralBandit`.
    """

    def __init__(
        self,
        dim: int,
        *,
        levels: int | None = None,
        beta: float | None = None,
        norm: float = 1.0,
        noise: float = 0.1,
        delta: float = 0.1,
        batch: dict[str, Any] | None = None,
        lam: float = 1.0,
        **neural: Any,
    ) -> None:
        name = type(self).__name__
        for key, cure in {"members": "levels", "retrain": "batch", "history": "nothing: it keeps every round"}.items():
            if key in neural:
                raise NblError(f"{name} has no option {key}; use {cure}.")
        if levels is None and neural.get("horizon") is None:
            raise NblError(f"{name}: say how long, horizon=T, or how many levels, levels=R (about log2 T).")
        if levels is None and whole(neural["horizon"], 1):
            levels = max(1, math.ceil(math.log2(neural["horizon"])))
        if levels is not None and not whole(levels, 1):
            raise NblError(f"{name}(levels={levels!r}): need a whole number, at least 1.")
        super().__init__(dim, lam=lam, members=int(levels or 1), history="full", **neural)
        for theirs in ("members", "retrain", "history"):  # not ours to give: a checkpoint is built from what was given
            self.hparams.pop(theirs, None)
        beta, norm, noise, delta = (simple(value) for value in (beta, norm, noise, delta))
        if beta is not None and not (isinstance(beta, int | float) and beta >= 0):
            raise NblError(f"{name}(beta={beta!r}): need a number, 0 (greedy) or more, or None for Theorem 2's.")
        self.levels, self.beta = self.members, ntk.radius(norm, noise, delta) if beta is None else float(beta)
        self.sizes, self.growth = _batch(batch, self.levels, name)
        size = self.features(torch.zeros(self.replicas, 1, dim)).size
        self.design = Levels(self.replicas, size, lam, self.levels)
        self.design.most = self.horizon
        for buffer in ("psi", "learnt"):  # |Psi^(r)| now, and when network r was last trained
            self.register_buffer(buffer, torch.zeros(self.replicas, self.levels, dtype=torch.int64))
        self.register_buffer("mark", torch.zeros(self.replicas, self.levels, dtype=torch.float64))  # log det then

    psi: Tensor
    learnt: Tensor
    mark: Tensor
    exact = ("mark",)

    # What an algorithm writes -----------------------------------------------------------------------------------------

    @abstractmethod
    def walk(self, contexts: Tensor, allowed: Tensor | None) -> Walk:
        """Down the levels.    (R, q, K, d), (R, q, K)"""

    @abstractmethod
    def place(self, level: Tensor, branch: Tensor) -> Tensor:
        """The level whose data the round joins; `self.levels` is none.    (R, q), (R, q) -> (R, q)"""

    # What both do -----------------------------------------------------------------------------------------------------

    def features(self, x: Tensor) -> Gradient:
        """g(x; W_0).    (R, n, d) -> (R, n, p)"""
        return self.net.features(x, self.net.theta0)

    def predict(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """f(x; W^(r)) and sigma^(r)(x) of all levels.    (R, q, K, d) -> (R, q, levels, K) twice"""
        R, q, K, _ = contexts.shape
        x = contexts.flatten(1, 2)
        f, sigma = self.net(x).to(x.dtype), self.design.width(self.features(x)).to(x.dtype)
        return f.view(R, -1, q, K).transpose(1, 2), sigma.view(R, -1, q, K).transpose(1, 2)

    def score(self, contexts: Tensor) -> Score:
        return self.score_among(contexts, None)

    def score_among(self, contexts: Tensor, allowed: Tensor | None) -> Score:
        walk = self.walk(contexts, allowed)
        extra = {"level": walk.level + 1, "branch": walk.branch}
        sizes = {f"psi_{r + 1}": self.psi[:, r : r + 1].expand_as(walk.level) for r in range(self.levels)}
        return Score(walk.score, walk.mean, walk.width, None, {**extra, **sizes})

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        level, branch = self._where(contexts)
        place = self.place(level, branch)
        stored = (place < self.levels).to(weight.loss)
        self.history.append(contexts, arms, reward.unsqueeze(1), weight.loss * stored)
        self.design.put(self.features(take(contexts, arms)), weight.design * stored, place)
        self.psi.scatter_add_(1, place.clamp_max(self.levels - 1), stored.long())

    def _where(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Level and branch of the round being observed.    -> (R, q), (R, q)

        A Decision says where its round went; for arms alone, and for feedback that is delivered late, the walk is made
        again, with what is known by then.
        """
        shape, found = contexts.shape[:2], self.decided
        if all(name in found and found[name].numel() == shape.numel() for name in ("level", "branch")):
            level, branch = (found[name].to(contexts.device).view(shape).long() for name in ("level", "branch"))
            return (level - 1).clamp(0, self.levels - 1), branch
        walk = self.walk(contexts, None)
        return walk.level, walk.branch

    @torch.no_grad()
    def learn(self) -> None:
        """Retrain the levels whose batch is full, each network on its own rounds."""
        if self.growth is None:
            due = self.psi - self.learnt >= self.sizes.to(self.psi.device)
        else:
            grown = self.design.logdet() - self.mark >= math.log(self.growth)
            due = (self.psi > self.learnt) & (grown | (self.learnt == 0))
        self._train(due)

    def _train(self, due: Tensor) -> None:
        """(R, levels)"""
        asked, sizes = torch.stack([due.long(), self.psi]).flatten(1).tolist()  # the one question to the device
        if any(asked):
            rows = torch.tensor([row for row, is_due in enumerate(asked) if is_due], device=due.device)
            longest = max(n for n, is_due in zip(sizes, asked, strict=True) if is_due)
            self.fit.some(self.net, self._subsets(rows, longest), self.psi.flatten()[rows], rows)
            self.learnt.copy_(torch.where(due, self.psi, self.learnt))
            self.mark.copy_(torch.where(due, self.design.logdet(), self.mark))

    def _subsets(self, rows: Tensor, longest: int) -> Data:
        """Psi^(r) of some networks, padded with weights of 0 to the longest of them."""
        n, replica = self.history.n, rows // self.levels
        belongs = self.design.labels[replica, :n] == (rows % self.levels).unsqueeze(1)  # (B, n)
        slot = torch.where(belongs, belongs.cumsum(1) - 1, longest)
        times = torch.arange(n, device=rows.device).expand_as(slot)
        order = slot.new_zeros(len(rows), longest + 1).scatter_(1, slot, times)[:, :longest]  # rounds, in order
        real = torch.arange(longest, device=rows.device) < belongs.sum(1, keepdim=True)
        data, at = self.history.data(), replica.unsqueeze(1)
        rest = data.rest.new_zeros(len(rows), 1)
        return Data(
            data.inputs[at, order], data.targets[at, 0, order].unsqueeze(1), data.weights[at, order] * real, rest
        )

    def forget(self) -> None:
        super().forget()
        for part in (self.design.reset, self.psi.zero_, self.learnt.zero_, self.mark.zero_):
            part()

    def retrain(self) -> None:
        super().retrain()
        if n := self.history.n:  # W_0 is another one, and so are the gradients at it
            weight, level = self.design.roots[:, :n].square(), self.design.labels[:, :n].clone()
            self.design.reset()
            self.design.put(self.features(self.history.data().inputs), weight, level)
            self.mark.copy_(self.design.logdet())

    def train_all(self) -> None:
        self._train(self.psi > 0)

    def logdet(self) -> Tensor:
        """Of all levels together.    -> (R,)"""
        return self.design.logdet().sum(-1)

    def diagnostics(self) -> dict[str, Tensor]:
        sizes = {f"psi/{r + 1}": self.psi[:, r].double() for r in range(self.levels)}
        return {**super().diagnostics(), "design/logdet": self.logdet(), **sizes}


def at_level(values: Tensor, level: Tensor) -> Tensor:
    """What is said of the arms at one level.    (R, q, levels, K), (R, q) -> (R, q, K)"""
    index = level[..., None, None].expand(*level.shape, 1, values.shape[-1])
    return values.gather(2, index).squeeze(2)


def _batch(options: dict[str, Any] | None, levels: int, name: str) -> tuple[Tensor, float | None]:
    """q_r of each level, and the determinant's factor where that decides instead."""
    if options is not None and not isinstance(options, dict):
        raise NblError(f"{name}(batch={options!r}): need keys and values, for example {{'first': 5, 'factor': 2}}.")
    given = simple(dict(options or {"first": 1}))
    if unknown := sorted(set(given) - {"first", "factor", "logdet"}):
        raise NblError(f"{name}: batch has no option {', '.join(unknown)}; it has first, factor, logdet.")
    growth, first, factor = given.get("logdet"), given.get("first", 1), given.get("factor", 1)
    if growth is not None and (len(given) > 1 or not (isinstance(growth, int | float) and growth > 1)):
        raise NblError(f"{name}(batch={given}): logdet is a number above 1, and stands alone.")
    if not whole(first, 1) or not (isinstance(factor, int | float) and 1 <= factor <= 1000):
        raise NblError(f"{name}(batch={given}): need first >= 1, a whole number, and factor from 1 to 1000.")
    return torch.tensor([int(min(2**62, first * factor**r)) for r in range(levels)]), growth
