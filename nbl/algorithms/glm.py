"""Generalised linear bandits: the mean reward is mu(x.theta) with a known link. GLM-ES and its baselines.

    GLM-ES    arXiv:2510.10730, Algorithm 1 with the loss of section 4.2
    GLM-UCB   Li, Lu, Zhou. Provably Optimal Algorithms for Generalized Linear Contextual Bandits. ICML 2017 (rule=li);
              Filippi, Cappe, Garivier, Szepesvari. NIPS 2010 (rule=filippi)
    GLM-TSL   Kveton et al. Randomized Exploration in Generalized Linear Bandits. AISTATS 2020: theta ~ N(MLE, a^2 H^-1)
    GLM-FPL   the same paper: the MLE on rewards perturbed afresh every round

    paper      here            meaning
    m          self.members    ensemble size
    sigma_R, a self.nu         exploration
    mu, b      self.family     link, and its log-partition function
    theta^j    self.theta      minimiser of  lam/2 |theta|^2 - sum ((Y + Z^j) x.theta - b(x.theta))
    H          self.hessian    lam I + sum mu'(x.theta) x x^T

The loss is linear in the targets, so rewards and perturbations enter through one vector a member, sum (Y + Z) x.
Perturbing t rewards afresh is one draw of sum Z x ~ N(0, a^2 sum x x^T): equal in law to t draws, at the cost of d.

Departures: the minimiser is found by Newton's method to convergence, as Algorithm 1 says (argmin), where the
paper's experiments take 100 steps of gradient descent; GLM-FPL and GLM-TSL have the ridge of GLM-ES. The warm-up
(Algorithms 2 and 3) is a callback, `nbl_callbacks.GOptimalWarmup`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from nbl import explore, schedule
from nbl.design import matrix
from nbl.gradient import Gradient
from nbl.history import ArmHistory, History, take
from nbl.losses import family
from nbl.module import BanditModule, Score, Weight
from nbl.rows import Rows, full, products, rows
from nbl.types import NblError


def block_of(device: torch.device) -> int:
    """Newton steps between two questions to the device. Warm-started, two to four steps are enough."""
    return 1 if device.type == "cpu" else 6


def step_size(
    loss: Callable[[Tensor, Tensor], Tensor],
    at: tuple[Tensor, Tensor],
    move: tuple[Tensor, Tensor],
    slope: Tensor,
    moving: Tensor,
    blind: bool,
) -> Tensor:
    """The first of 1, 1/2, 1/4, ... that goes down enough, for each member that moves; `blind` does not ask.

    Outputs are linear in theta, so that going less far needs no product with the data. `at` and `move` are theta and a
    step (R, M, d), each with its outputs (R, M, n).    -> (R, M)
    """

    def after(size: Tensor) -> Tensor:
        return loss(at[0] - size.unsqueeze(-1) * move[0], at[1] - size.unsqueeze(-1) * move[1])

    size = torch.ones_like(slope)
    before = loss(*at)
    for _ in range(30):
        bad = moving & ~(after(size) <= before - 1e-4 * size * slope + 1e-12 * before.abs())
        if not blind and not bool(bad.any()):
            break
        size = torch.where(bad, 0.5 * size, size)
    return size


class GLMBandit(BanditModule):
    """The regularised maximum-likelihood estimate, one a member, kept up to date.

    Args:
        nu: how much to explore.
        lam: lambda, the ridge.
        link: logistic, poisson or gaussian.
        members: estimates a replica.
        iterations: of Newton's method, at most; it stops when the gradient vanishes.
        retrain: options of `nbl.schedule.Schedule`.
        **problem: dim, arms, replicas, seed, horizon, fixed_arms: see `BanditModule`.
    """

    exact: tuple[str, ...] = ("moment", "theta")

    def __init__(
        self,
        dim: int,
        *,
        nu: float = 0.1,
        lam: float = 1.0,
        link: str = "logistic",
        members: int = 1,
        iterations: int = 30,
        retrain: dict[str, Any] | None = None,
        **problem: Any,
    ) -> None:
        super().__init__(dim, **problem)
        if not nu >= 0:
            raise NblError(f"{type(self).__name__}(nu={nu!r}): need a number, 0 (greedy) or more.")
        if not lam > 0:
            raise NblError(f"{type(self).__name__}(lam={lam!r}): the ridge must be positive, for example 1.0.")
        if isinstance(members, bool) or not isinstance(members, int) or members < 1:
            raise NblError(f"{type(self).__name__}(members={members!r}): need a whole number, at least 1.")
        self.nu, self.lam, self.members, self.iterations = float(nu), float(lam), members, iterations
        self.family, self.schedule = family(link), schedule.build(retrain, self.replicas)
        self.count = self.blocks if self.reads_blocks else None  # where contexts come in blocks
        fixed = self.arms if self.fixed_arms and self.arms else None
        length = self.length
        self.history = ArmHistory(self.replicas, fixed, length) if fixed else History(self.replicas, length)
        self.history.double()
        self.build()

    moment: Tensor
    theta: Tensor
    layout: Mapping[str, str] = {"moment": "RM", "theta": "RM"}

    def build(self) -> None:
        members = self.team.count(self.members)
        zeros = torch.zeros(self.replicas, members, self.dim, dtype=torch.float64, device=self.device)
        self.register_buffer("moment", zeros)  # sum (Y + Z) x
        self.register_buffer("theta", zeros.clone())

    def means(self, contexts: Tensor) -> Tensor:
        """mu(x.theta) of each member.    (R, q, K, d) -> (R, q, M, K)"""
        return self.family.mean(products(contexts.double(), self.theta.unsqueeze(1), self.count))

    @torch.no_grad()
    def variance(self, contexts: Tensor, arms: Tensor) -> Tensor:
        """mu'(x.theta) of the arms played: what `VarianceWeighting` asks for.    (R, K, d), (R,) -> (R,)"""
        x, theta = self.chosen(contexts, arms).double(), self.team.join(self.theta, self.members, 1)
        return self.family.slope(products(x.unsqueeze(1), theta.mean(1)[:, None, None], self.count)[:, 0, 0, 0])

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        self.history.append(contexts, arms, reward.unsqueeze(1), weight.loss)
        x = take(contexts, arms).double()
        self.moment += torch.bmm(self.targets(reward).double() * weight.loss.unsqueeze(1), full(x, self.count))

    def targets(self, reward: Tensor) -> Tensor:
        """What each member is told.    (R, q) -> (R, M, q)"""
        return reward.unsqueeze(1)

    @torch.no_grad()
    def learn(self) -> None:
        if self.schedule.due(self.history.n, None):
            self.theta.copy_(self.minimise(self.theta, self.moment))

    def minimise(self, theta: Tensor, moment: Tensor) -> Tensor:
        """argmin of lam/2 |theta|^2 - moment.theta + sum w b(x.theta), from a first guess.    (R, M, d) -> (R, M, d)

        Newton's method. A member that has arrived stands still, so that it does what it would do alone, and it does no
        harm to go on: a GPU is asked whether all have after every `block_of` steps, which is once as a rule.
        """
        data, w = self.data()

        def loss(theta: Tensor, z: Tensor) -> Tensor:
            return (0.5 * self.lam * theta.square() - moment * theta).sum(-1) + (w * self.family.partition(z)).sum(-1)

        small, block = 1e-9 * (1.0 + moment.abs().amax(-1)), block_of(theta.device)
        for step in range(self.iterations + 1):
            z = data.times(theta)
            gradient = self.lam * theta - moment + data.sums(w * self.family.mean(z))
            moving = gradient.abs().amax(-1) > small  # (R, M)
            if step == self.iterations or (step and step % block == 0) or block == 1:
                well = theta.isfinite().all() & gradient.isfinite().all()
                if self._arrived(~moving.any(), well) or step == self.iterations:
                    break
            move = data.solve(w * self.family.slope(z), self.lam, gradient)
            slope = (gradient * move).sum(-1)
            size = step_size(loss, (theta, z), (move, data.times(move)), slope, moving, blind=block > 1)
            theta = torch.where(moving.unsqueeze(-1), theta - size.unsqueeze(-1) * move, theta)
        return theta

    def _arrived(self, all_have: Tensor, well: Tensor) -> bool:
        """The one question to the device."""
        arrived, fine = torch.stack([all_have, well]).tolist()
        if not fine:
            raise NblError(
                f"{type(self).__name__}: the estimate is not finite; scale rewards and contexts, or raise `lam`."
            )
        return bool(arrived)

    def data(self) -> tuple[Rows, Tensor]:
        """What was played, and the weights of it (R, 1, n)."""
        data = self.history.data()
        return rows(data.inputs, self.count), data.weights.unsqueeze(1)

    def hessian(self, theta: Tensor) -> Tensor:
        """lam I + sum w mu'(x.theta) x x^T.    (R, M, d) -> (R, M, d, d)"""
        data, w = self.data()
        return data.matrix(w * self.family.slope(data.times(theta)), self.lam)

    def forget(self) -> None:
        for buffer in (self.moment, self.theta):
            buffer.zero_()
        self.history.reset()
        self.schedule.reset()


class GLMES(GLMBandit):
    """Plays argmax x.theta^j for a j drawn uniformly; member j was told rewards plus its own N(0, nu^2), once drawn.

    Args:
        members: m.
        nu: sigma_R.
    """

    reads_blocks = randomised = ensemble = True
    may_change = ("members", "nu")

    def __init__(self, dim: int, *, members: int = 10, nu: float = 0.1, **glm: Any) -> None:
        super().__init__(dim, members=members, nu=nu, **glm)

    def score(self, contexts: Tensor) -> Score:
        f = self.team.join(self.means(contexts), self.members, 2)  # (R, q, M, K)
        chosen, votes, member = explore.ensemble(f, self.uniform("member", f.shape[1:2]))  # Algorithm 1, lines 4 and 5
        return Score(chosen, f.mean(2), f.std(2, correction=0), votes, {"member": member})

    def targets(self, reward: Tensor) -> Tensor:
        noise = self.team.mine(self.normal("perturbation", (self.members, reward.shape[1])), 1)  # Algorithm 1, line 7
        return reward.unsqueeze(1) + self.nu * noise  # line 8


class GLMUCB(GLMBandit):
    """Optimism: x.theta + nu sqrt(x^T V^-1 x) (rule=li), or mu(x.theta) + nu sqrt(x^T V^-1 x) (rule=filippi).

    Args:
        rule: li or filippi.
    """

    reads_blocks = True

    def __init__(self, dim: int, *, nu: float = 0.5, rule: str = "li", **glm: Any) -> None:
        super().__init__(dim, nu=nu, **glm)
        if rule not in ("li", "filippi"):
            raise NblError(f"GLMUCB(rule={rule!r}): choose li or filippi.")
        self.rule, self.design = rule, matrix(self.replicas, dim, self.lam, self.count)

    def score(self, contexts: Tensor) -> Score:
        latent = products(contexts.double(), self.theta.unsqueeze(1), self.count).squeeze(2)
        mean = self.family.mean(latent)
        width = self.design.width(Gradient.of_rows(contexts.flatten(1, 2), self.count)).view(mean.shape)
        centre = mean if self.rule == "filippi" else latent
        return Score(explore.ucb(centre, width, self.nu), mean, width)

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        super().commit(contexts, arms, reward, weight)
        self.design.update(Gradient.of_rows(take(contexts, arms), self.count), weight.design)

    def forget(self) -> None:
        super().forget()
        self.design.reset()

    def diagnostics(self) -> dict[str, Tensor]:
        return {"design/logdet": self.logdet()}

    def logdet(self) -> Tensor:
        """How much the confidence matrix has grown.    -> (R,)"""
        return self.design.logdet()


class GLMTSL(GLMBandit):
    """Plays argmax x.theta with theta ~ N(MLE, nu^2 H^-1), one draw a round: the Laplace approximation."""

    randomised = True

    def score(self, contexts: Tensor) -> Score:
        factor = torch.linalg.cholesky(self.hessian(self.theta)[:, 0])  # H = L L^T, so L^-T noise ~ N(0, H^-1)
        noise = self.normal("thompson", (contexts.shape[1], self.dim)).double()
        drawn = torch.linalg.solve_triangular(factor.mT, noise.mT, upper=True).mT  # (R, q, d)
        theta = self.theta[:, :1] + self.nu * drawn
        return Score(torch.einsum("rqkd,rqd->rqk", contexts.double(), theta), self.means(contexts).squeeze(2))


class GLMFPL(GLMBandit):
    """Plays argmax x.theta, theta the estimate from rewards that are all perturbed afresh, N(0, nu^2), after every
    round.
    """

    randomised = True
    exact = ("moment", "theta", "scatter", "leader")

    def __init__(self, dim: int, **glm: Any) -> None:
        super().__init__(dim, **glm)
        self.register_buffer("scatter", torch.zeros(self.replicas, dim, dim, dtype=torch.float64))  # sum w^2 x x^T
        self.register_buffer("leader", torch.zeros(self.replicas, 1, dim, dtype=torch.float64))

    scatter: Tensor
    leader: Tensor

    def score(self, contexts: Tensor) -> Score:
        scores = torch.einsum("rqkd,rd->rqk", contexts.double(), self.leader[:, 0])
        return Score(scores, self.means(contexts).squeeze(2))

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        super().commit(contexts, arms, reward, weight)
        x = take(contexts, arms).double() * weight.loss.unsqueeze(-1)
        self.scatter += torch.bmm(x.mT, x)

    @torch.no_grad()
    def learn(self) -> None:
        noise = explore.perturbation(self.scatter, self.normal("perturbation", (self.dim,)))
        both = [self.moment, self.moment + self.nu * noise.unsqueeze(1)]
        due = self.schedule.due(self.history.n, None)
        start = self.theta.repeat(1, 2, 1) if due else self.theta
        theta = self.minimise(start, torch.cat(both if due else both[1:], 1))
        self.theta.copy_(theta[:, :-1] if due else self.theta)
        self.leader.copy_(theta[:, -1:])

    def forget(self) -> None:
        super().forget()
        self.scatter.zero_()
        self.leader.zero_()
