"""Coins with a nonlinear latent reward: r ~ Bernoulli(sigmoid(h(x))).

Bae, Lee. Neural Logistic Bandits. arXiv:2505.02069v2, section 7 and appendices A and J.

    LogH1   0.2 (x.theta)^4       LogH2   20 cos(x.theta)          LogH3   5 x'Theta x
    LogH4   10 (x.theta)^2        LogH5   x'Theta'Theta x          LogH6   cos(3 x.theta)

Entries of theta and Theta are uniform on (-1, 1). Contexts have entries uniform on [-1, 1] and are not normalised
(vectors of norm 1 would make every arm a fair coin); those of a round are drawn from a pool of `pool` vectors, without
repeats within the round where the pool allows it. The pool's size controls the effective dimension: the paper takes 10
(low), 50 (middle), 10 000 (high), and 2500 elsewhere. A mean is a probability, so that regret is in rewards.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from nbl.envs.synthetic import Problem, dot
from nbl.types import Feedback, NblError


class LogisticPool(Problem):
    """What the six share.

    Args:
        arms, dim, replicas, seed: see `Environment`.
        pool: how many vectors there are; None: fresh ones every round.
    """

    table: Tensor

    def __init__(
        self,
        arms: int = 5,
        dim: int = 20,
        pool: int | None = 2500,
        replicas: int = 1,
        seed: int = 0,
        noise: float = 0.0,
    ) -> None:
        if noise:
            raise NblError(f"{type(self).__name__}(noise={noise!r}): rewards are coins; there is no noise to set.")
        if pool is not None and (isinstance(pool, bool) or not isinstance(pool, int) or pool < 2):
            raise NblError(f"{type(self).__name__}(pool={pool!r}): need a whole number, at least 2, or null.")
        super().__init__(arms, dim, 0.0, replicas, seed)
        self.pool = pool
        if pool is not None:  # a function of the seed: not state
            table = 2 * self.streams.uniform("pool", 0, (pool, dim)) - 1
            self.register_buffer("table", table, persistent=False)

    def problem(self) -> dict[str, Tensor]:
        return {"theta": 2 * self.streams.uniform("theta", 0, (self.dim,)) - 1}

    def draw(self, t: int) -> Tensor:
        if self.pool is None:
            return 2 * self.streams.uniform("contexts", t, (self.arms, self.dim), self.device) - 1
        u = self.streams.uniform("picks", t, (self.arms,), self.device)
        picks = distinct(u, self.pool) if self.arms <= self.pool else (u * self.pool).long()
        return self.table.gather(1, picks[..., None].expand(-1, -1, self.dim))

    @abstractmethod
    def latent(self, contexts: Tensor) -> Tensor:
        """h(x).    (R, K, d) -> (R, K)"""

    def mean(self, contexts: Tensor) -> Tensor:
        return self.latent(contexts).sigmoid()

    def pull(self, arms: Tensor) -> Feedback:
        played, regret = self._played(arms), self.regret(arms)
        coin = self.streams.uniform("coin", self.t, (self.arms,), self.device).gather(-1, arms[:, None]).squeeze(-1)
        variance = {"variance": played * (1 - played)}
        return Feedback(reward=(coin < played).double(), regret=regret, optimal=regret <= 0, extra=variance)


def distinct(u: Tensor, n: int) -> Tensor:
    """K different numbers below n from K uniform ones: each is drawn from those that are left.    (R, K) -> (R, K)"""
    picks: list[Tensor] = []
    for k in range(u.shape[-1]):
        pick = (u[:, k] * (n - k)).long().clamp_max(n - k - 1)
        taken = torch.stack(picks, -1).sort(-1).values if picks else u.new_zeros(len(u), 0).long()
        for j in range(k):  # skip over what is taken, in order
            pick = pick + (pick >= taken[:, j]).long()
        picks.append(pick)
    return torch.stack(picks, -1)


class LogH1(LogisticPool):
    """0.2 (x.theta)^4."""

    theta: Tensor

    def latent(self, contexts: Tensor) -> Tensor:
        return 0.2 * dot(contexts, self.theta) ** 4


class LogH2(LogH1):
    """20 cos(x.theta)."""

    def latent(self, contexts: Tensor) -> Tensor:
        return 20 * dot(contexts, self.theta).cos()


class LogH3(LogisticPool):
    """5 x'Theta x."""

    Theta: Tensor

    def problem(self) -> dict[str, Tensor]:
        return {"Theta": 2 * self.streams.uniform("Theta", 0, (self.dim, self.dim)) - 1}

    def latent(self, contexts: Tensor) -> Tensor:
        return 5 * ((contexts @ self.Theta) * contexts).sum(-1)


class LogH4(LogH1):
    """10 (x.theta)^2."""

    def latent(self, contexts: Tensor) -> Tensor:
        return 10 * dot(contexts, self.theta).square()


class LogH5(LogH3):
    """x'Theta'Theta x."""

    def latent(self, contexts: Tensor) -> Tensor:
        return (contexts @ self.Theta.mT).square().sum(-1)


class LogH6(LogH1):
    """cos(3 x.theta)."""

    def latent(self, contexts: Tensor) -> Tensor:
        return (3 * dot(contexts, self.theta)).cos()
