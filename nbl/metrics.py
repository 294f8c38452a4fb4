"""Regret, reward and optimal-arm rate: one number a replica, and their mean, spread and confidence interval.

    regret = CumulativeRegret(replicas=5)
    regret.update(feedback.regret)          # (R,), one round; or (R, n), n rounds at once
    regret.per_replica()                    # (R,)
    regret.compute()                        # {"mean", "sd", "ci95_low", "ci95_high"}, over the replicas of all ranks

Replicas are what is sharded across ranks, in shares that may differ: ranks are joined by concatenation.
Sums are kept in float64.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy.special import stdtrit
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from nbl.types import NblError


def summarise(values: Tensor) -> dict[str, float]:
    """Mean, sample standard deviation and 95% Student t interval of one number a replica.    (R,)

    One replica says nothing about the spread: `sd`, `ci95_low` and `ci95_high` are then NaN.
    """
    if values.ndim != 1 or len(values) == 0:
        raise NblError(f"summarise: values have shape {tuple(values.shape)}; need one number a replica, shape (R,).")
    values, n = values.double(), len(values)
    mean, sd = float(values.mean()), float(values.std()) if n > 1 else math.nan
    half = float(stdtrit(n - 1, 0.975)) * sd / math.sqrt(n) if n > 1 else math.nan
    return {"mean": mean, "sd": sd, "ci95_low": mean - half, "ci95_high": mean + half}


class ReplicaMetric(Metric):
    """One accumulator a replica. A subclass says how rounds are folded in, or how the total is read.

    The states are lists with one tensor, because that is what torchmetrics concatenates across ranks of unequal size.

    Args:
        replicas: R on this rank.
        kwargs: for `torchmetrics.Metric`.
    """

    full_state_update = True  # `forward` must not merge states by concatenation
    is_differentiable = False
    start = 0.0  # of the accumulator, before the first round
    total: list[Tensor]
    count: list[Tensor]

    def __init__(self, replicas: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if replicas < 1:
            raise NblError(f"{type(self).__name__}(replicas={replicas}): need at least 1.")
        self.replicas = replicas
        self.add_state("total", default=[], dist_reduce_fx="cat", persistent=True)
        self.add_state("count", default=[], dist_reduce_fx="cat", persistent=True)

    def update(self, values: Tensor) -> None:
        """Take in one round, (R,), or n rounds, (R, n)."""
        if values.ndim not in (1, 2) or len(values) != self.replicas or values.numel() == 0:
            raise NblError(
                f"{type(self).__name__}: values have shape {tuple(values.shape)}; "
                f"need ({self.replicas},) for one round or ({self.replicas}, n) for n rounds."
            )
        rounds = values.detach().double().view(self.replicas, -1)
        total, count = self._state("total", self.start), self._state("count", 0.0)
        self.total, self.count = [self.fold(total, rounds)], [count + rounds.shape[1]]

    def fold(self, total: Tensor, rounds: Tensor) -> Tensor:
        """The accumulator after these rounds.    (R,), (R, n) -> (R,)"""
        return total + rounds.sum(1)

    def per_replica(self) -> Tensor:
        """The metric of each replica on this rank.    -> (R,)"""
        return self._state("total", self.start)

    def compute(self) -> dict[str, float]:
        """`summarise` over the replicas of all ranks."""
        return summarise(self.per_replica())

    def _state(self, name: str, start: float) -> Tensor:
        kept = getattr(self, name)  # a tensor while ranks are joined, otherwise a list
        if isinstance(kept, list) and not kept:
            return torch.full((self.replicas,), start, dtype=torch.float64, device=self.device)
        return dim_zero_cat(kept)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._computed, self._update_count = None, int(self._state("count", 0.0).amax())  # torchmetrics saves neither


class CumulativeRegret(ReplicaMetric):
    """Sum of the regrets of all rounds."""

    higher_is_better = False


class CumulativeReward(ReplicaMetric):
    """Sum of the rewards of all rounds."""

    higher_is_better = True


class SimpleRegret(ReplicaMetric):
    """The latest value given: the regret of the arm that would be played greedily now. NaN before the first."""

    higher_is_better = False
    start = math.nan

    def fold(self, total: Tensor, rounds: Tensor) -> Tensor:
        return rounds[:, -1].clone()


class MeanReward(ReplicaMetric):
    """Reward a round. NaN before the first."""

    higher_is_better = True

    def per_replica(self) -> Tensor:
        return self._state("total", 0.0) / self._state("count", 0.0)


class OptimalArmRate(MeanReward):
    """The share of rounds in which one of the best arms was played; `update` takes `feedback.optimal`."""
