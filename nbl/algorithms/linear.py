"""Linear bandits: LinUCB, LinTS and Lin-ES. Ridge regression in closed form, kept up to date round by round.

LinUCB   Li et al. 2010, Chu et al. 2011, Abbasi-Yadkori et al. 2011: x.theta + nu sqrt(x^T A^-1 x)
LinTS    Agrawal and Goyal 2013: theta ~ N(theta_hat, nu^2 A^-1), one draw a round
Lin-ES   Lu and Van Roy 2017; arXiv:2510.10730: M ridge estimates on perturbed rewards, one drawn a round

paper      here            meaning
A, V       self.design     lam I + sum x x^T
b          self.moment     sum r x (one a member)
theta_hat  self.theta      A^-1 b
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nbl import explore
from nbl.design import matrix, root
from nbl.gradient import Gradient
from nbl.history import take
from nbl.module import BanditModule, Score, Weight
from nbl.rows import full, products, transform
from nbl.types import NblError


class LinearBandit(BanditModule):
    """A ridge estimate (or M of them, on differently perturbed rewards) and its confidence matrix.

    Args:
        nu: how much to explore.
        lam: lambda, the ridge.
        **problem: dim, arms, replicas, seed, horizon, fixed_arms: see `BanditModule`.
    """

    members = 1
    exact: tuple[str, ...] = ("moment", "theta")

    def __init__(self, dim: int, *, nu: float = 1.0, lam: float = 1.0, **problem: Any) -> None:
        super().__init__(dim, **problem)
        if not nu >= 0:
            raise NblError(f"{type(self).__name__}(nu={nu!r}): need a number, 0 (greedy) or more.")
        self.nu, self.lam = float(nu), float(lam)
        self.count = self.blocks if self.reads_blocks else None  # where contexts come in blocks
        self.design = matrix(self.replicas, dim, lam, self.count)
        self.build()

    moment: Tensor
    theta: Tensor
    layout: Mapping[str, str] = {"moment": "RM", "theta": "RM"}

    def build(self) -> None:
        members = self.team.count(self.members)
        zeros = torch.zeros(self.replicas, members, self.dim, dtype=torch.float64, device=self.device)
        self.register_buffer("moment", zeros)
        self.register_buffer("theta", zeros.clone())

    def means(self, contexts: Tensor) -> Tensor:
        """x.theta_hat of each member.    (R, q, K, d) -> (R, q, M, K)"""
        return self.products(contexts, self.theta.double().unsqueeze(1))

    def products(self, contexts: Tensor, theta: Tensor) -> Tensor:
        """x.theta.    (R, q, K, d), (R, q, M, d) or one for all q -> (R, q, M, K)"""
        return products(contexts.double(), theta, self.count)

    def vectors(self, x: Tensor) -> Gradient:
        """(R, n, d) -> (R, n, d)"""
        return Gradient.of_rows(x, self.count)

    def widths(self, contexts: Tensor) -> Tensor:
        """sqrt(x^T A^-1 x): with the root.    (R, q, K, d) -> (R, q, K)"""
        return self.design.width(self.vectors(contexts.flatten(1, 2))).view(contexts.shape[:3])

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        x = take(contexts, arms).double()  # (R, q, d)
        targets = self.targets(reward).double() * weight.loss.unsqueeze(1)  # (R, M, q)
        self.design.update(self.vectors(x), weight.loss)  # A is the loss's own matrix
        self.moment += torch.bmm(targets, full(x, self.count))
        self.theta.copy_(transform(self.moment.double(), self.design.inverse))

    def targets(self, reward: Tensor) -> Tensor:
        """What each member is told.    (R, q) -> (R, M, q)"""
        return reward.unsqueeze(1)

    def forget(self) -> None:
        self.design.reset()
        self.moment.zero_()
        self.theta.zero_()

    def diagnostics(self) -> dict[str, Tensor]:
        return {"design/logdet": self.logdet()}

    def logdet(self) -> Tensor:
        """How much the confidence matrix has grown.    -> (R,)"""
        return self.design.logdet()


class LinUCB(LinearBandit):
    """Plays argmax x.theta_hat + nu sqrt(x^T A^-1 x)."""

    reads_blocks = True

    def score(self, contexts: Tensor) -> Score:
        mean, width = self.means(contexts).squeeze(2), self.widths(contexts)
        return Score(explore.ucb(mean, width, self.nu), mean, width)


class LinTS(LinearBandit):
    """Plays argmax x.theta with theta ~ N(theta_hat, nu^2 A^-1)."""

    reads_blocks = True
    randomised = True

    def score(self, contexts: Tensor) -> Score:
        mean, width = self.means(contexts).squeeze(2), self.widths(contexts)
        noise = self.normal("thompson", (contexts.shape[1], self.dim)).double()  # one draw a question    (R, q, d)
        theta = self.nu * transform(noise, root(self.design.inverse, self.lam).mT)  # theta - theta_hat
        return Score(mean + self.products(contexts, theta.unsqueeze(2)).squeeze(2), mean, width)


class LinES(LinearBandit):
    """Plays argmax x.theta_j for a j drawn uniformly; member j was told rewards plus its own N(0, nu^2), once drawn.

    Args:
        members: M.
        nu: sigma_R.
    """

    reads_blocks = randomised = ensemble = True
    may_change = ("members", "nu")

    def __init__(self, dim: int, *, members: int = 25, nu: float = 0.1, lam: float = 1.0, **problem: Any) -> None:
        if isinstance(members, bool) or not isinstance(members, int) or members < 1:
            raise NblError(f"LinES(members={members!r}): need a whole number, at least 1.")
        self.members = members
        super().__init__(dim, nu=nu, lam=lam, **problem)

    def score(self, contexts: Tensor) -> Score:
        f = self.team.join(self.means(contexts), self.members, 2)  # (R, q, M, K)
        chosen, votes, member = explore.ensemble(f, self.uniform("member", f.shape[1:2]))  # Algorithm 1, lines 4 and 5
        return Score(chosen, f.mean(2), f.std(2, correction=0), votes, {"member": member})

    def targets(self, reward: Tensor) -> Tensor:
        noise = self.team.mine(self.normal("perturbation", (self.members, reward.shape[1])), 1)  # line 7
        return reward.unsqueeze(1) + self.nu * noise  # line 8


class LinPHE(LinearBandit):
    """Plays argmax x.theta, theta the ridge estimate from rewards all perturbed afresh, N(0, nu^2), in every round.

    Kveton et al. 2019 (LinPHE) with Gaussian perturbations. The t perturbations enter as sum z x ~ N(0, nu^2 sum x
    x^T): one draw of d numbers, equal in law.
    """

    randomised = True
    exact = ("moment", "theta", "scatter")

    def __init__(self, dim: int, *, nu: float = 0.1, lam: float = 1.0, **problem: Any) -> None:
        super().__init__(dim, nu=nu, lam=lam, **problem)
        self.register_buffer("scatter", torch.zeros(self.replicas, dim, dim, dtype=torch.float64))  # sum w^2 x x^T

    scatter: Tensor

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        super().commit(contexts, arms, reward, weight)
        x = take(contexts, arms).double() * weight.loss.unsqueeze(-1)
        self.scatter += torch.bmm(x.mT, x)

    def score(self, contexts: Tensor) -> Score:
        noise = explore.perturbation(self.scatter, self.normal("perturbation", (self.dim,)))
        theta = torch.bmm(self.nu * noise.unsqueeze(1), self.design.inverse)  # theta - theta_hat    (R, 1, d)
        mean = self.means(contexts).squeeze(2)
        return Score(mean + torch.einsum("rqkd,rd->rqk", contexts.double(), theta[:, 0]), mean)

    def forget(self) -> None:
        super().forget()
        self.scatter.zero_()
