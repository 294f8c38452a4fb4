"""Logistic bandits with a linear latent reward: Logistic-UCB-1 and ada-OFU-ECOLog.

Faury, Abeille, Calauzenes, Fercoq. Improved Optimistic Algorithms for Logistic Bandits. ICML 2020 (Logistic-UCB-1).
Faury, Abeille, Jun, Calauzenes. Jointly Efficient and Optimal Algorithms for Logistic Bandits. AISTATS 2022 (ECOLog).

    paper      here            meaning
    theta_t    self.theta      maximum likelihood with ridge lambda, or the online estimate
    V_t        self.design     kappa lambda I + sum x x^T                              (Logistic-UCB-1)
    W_t        self.design     lambda I + sum mu'(x_i.theta_i) x x^T                   (ada-OFU-ECOLog)
    d~_t       self.effective  log det(sum R x x^T + I), R = 1/4
    gamma_t    radius          confidence radius

`practical` (theory=False) is appendix A of arXiv:2505.02069, the streamlined form: the highest UCB is played, and the
estimate is the maximum of the likelihood (found by Newton's method where the paper takes gradient steps; W then has
the variance at theta_{t-1}, when an arm is observed). The bonus is nu
times the order of the theory's in kappa, S, lambda and d~_t, ours to choose:

    Logistic-UCB-1   mu(x.theta) + nu R sqrt(kappa (1 + 2 S)) (sqrt(lambda) (S + 1/2) + d~_t / sqrt(lambda)) |x|_{V^-1}
    ada-OFU-ECOLog   x.theta     + nu sqrt(lambda S^2 + (1 + S) d~_t) |x|_{W^-1}

`paper` (theory=True) has the constants and logarithms. Logistic-UCB-1: R sqrt(4 kappa (1 + 2 S)) gamma_t, with
gamma_t = sqrt(lambda) (S + 1/2) + (2 / sqrt(lambda)) log((2^d / delta) (1 + t / (4 d lambda))^(d/2)). ada-OFU-ECOLog:
the online second-order step theta_{t+1} = argmin |theta - theta_t|^2_{W_t} / (2 + D) + loss_t(theta), D = 2 S, which
lies on the line theta_t + c W_t^-1 x and so is one equation in one unknown; the radius is
sqrt(2 lambda S^2 + (1 + S)^2 gamma_t + 2 (1 + S) d~_t), with
gamma_t = sqrt(lambda) / 2 + (2 / sqrt(lambda)) log((2 / delta) sqrt(1 + t / (4 lambda))).

Departures: no projection onto |theta| <= S and no data-dependent warm-up (the seed streamlines both away); in ECOLog's
radius the running sum of losses has been replaced by the order of its bound, 2 (1 + S) d~_t.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from nbl import explore
from nbl.algorithms.glm import GLMBandit
from nbl.algorithms.neural_logistic import check
from nbl.bounds import R
from nbl.design import Full
from nbl.gradient import Gradient
from nbl.history import take
from nbl.module import Score, Weight
from nbl.types import NblError
from nbl_callbacks.variance import weights


class LogisticBandit(GLMBandit):
    """What the two share.

    Args:
        nu, lam, iterations, retrain: see `GLMBandit`.
        S: bound on |theta|.
        kappa: 1 / the smallest variance of a reward, at least 4.
        delta: the bounds hold with probability 1 - delta.
        theory: constants and logarithms as printed; False: the order of the radius.
    """

    bernoulli = True

    def __init__(
        self,
        dim: int,
        *,
        nu: float = 1.0,
        lam: float = 1.0,
        S: float = 1.0,
        kappa: float = 10.0,
        delta: float = 0.05,
        theory: bool = False,
        **glm: Any,
    ) -> None:
        check(type(self).__name__, S=S, kappa=kappa, delta=delta)
        if glm.get("link", "logistic") != "logistic" or glm.get("members", 1) != 1:
            raise NblError(
                f"{type(self).__name__} has one estimate and the logistic link; leave `link` and `members` out."
            )
        super().__init__(dim, nu=nu, lam=lam, **glm)
        self.S, self.kappa, self.delta, self.theory = float(S), float(kappa), float(delta), bool(theory)
        self.design = Full(self.replicas, dim, self.base())
        self.effective = Full(self.replicas, dim, 1.0 / R)

    def base(self) -> float:
        """The ridge of the confidence matrix."""
        return self.lam

    @abstractmethod
    def radius(self) -> Tensor:
        """The bonus over ||x||.    -> (R,)"""

    def weigh(self, x: Tensor, given: Tensor) -> Tensor:
        """The weights in the confidence matrix.    (R, q, d), (R, q) -> (R, q)"""
        return given

    def optimistic(self, contexts: Tensor, in_reward: bool) -> Score:
        latent = torch.einsum("rqkd,rd->rqk", contexts.double(), self.theta[:, 0])
        mean = self.family.mean(latent)
        width = self.design.width(Gradient.explicit(contexts.flatten(1, 2))).view(mean.shape)
        radius, d = (part[:, None].expand(mean.shape[:2]) for part in (self.radius(), self.effective.logdet()))
        score = explore.ucb(mean if in_reward else latent, width, self.nu * radius.unsqueeze(-1))
        return Score(score, mean, width, extra={"radius": radius, "effective_dimension": d})

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        super().commit(contexts, arms, reward, weight)
        x = take(contexts, arms).double()
        self.effective.update(Gradient.explicit(x), weight.design)
        for i in range(x.shape[1]):
            one = x[:, i : i + 1]
            self.step(one[:, 0], reward[:, i].double(), weight.loss[:, i].double())
            self.design.update(Gradient.explicit(one), self.weigh(one, weight.design[:, i : i + 1]))

    def step(self, x: Tensor, reward: Tensor, weight: Tensor) -> None:
        """What is learnt at once from one observation a replica, where anything is.    (R, d), (R,), (R,)"""

    def logdet(self) -> Tensor:
        """How much the confidence matrix has grown.    -> (R,)"""
        return self.design.logdet()

    def forget(self) -> None:
        super().forget()
        self.design.reset()
        self.effective.reset()

    def diagnostics(self) -> dict[str, Tensor]:
        d = {"design/effective_dimension": self.effective.logdet(), "design/logdet": self.logdet()}
        return {**d, "design/radius": self.radius()}


class LogisticUCB1(LogisticBandit):
    """Plays argmax mu(x.theta_t) + radius ||x||_{V^-1}: the global variance bound 1/kappa, for every arm."""

    def base(self) -> float:
        return self.kappa * self.lam

    def radius(self) -> Tensor:
        root, d, t = math.sqrt(self.lam), self.effective.logdet(), max(self.history.n, 1)
        if not self.theory:
            return R * math.sqrt(self.kappa * (1 + 2 * self.S)) * (root * (self.S + 0.5) + d / root)
        log = self.dim * math.log(2) - math.log(self.delta) + self.dim / 2 * math.log1p(t / (4 * self.dim * self.lam))
        gamma = root * (self.S + 0.5) + 2 / root * log
        return torch.full_like(d, R * math.sqrt(4 * self.kappa * (1 + 2 * self.S)) * gamma)

    def score(self, contexts: Tensor) -> Score:
        return self.optimistic(contexts, in_reward=True)


class AdaOFUECOLog(LogisticBandit):
    """Plays argmax x.theta_t + radius ||x||_{W^-1}: each arm counts by its own estimated variance.

    Args:
        online: the second-order step on the newest observation, O(d^2) a round; False: the maximum of the likelihood;
            None: as `theory` says.
    """

    weighs_variance = True

    def __init__(self, dim: int, *, online: bool | None = None, **logistic: Any) -> None:
        super().__init__(dim, **logistic)
        self.online = self.theory if online is None else bool(online)

    def radius(self) -> Tensor:
        S, d, t = self.S, self.effective.logdet(), max(self.history.n, 1)
        if not self.theory:
            return (self.lam * S**2 + (1 + S) * d).sqrt()
        root = math.sqrt(self.lam)
        gamma = root / 2 + 2 / root * (math.log(2 / self.delta) + 0.5 * math.log1p(t / (4 * self.lam)))
        return (2 * self.lam * S**2 + (1 + S) ** 2 * gamma + 2 * (1 + S) * d).sqrt()

    def score(self, contexts: Tensor) -> Score:
        return self.optimistic(contexts, in_reward=False)

    def learn(self) -> None:
        if not self.online:
            super().learn()

    def step(self, x: Tensor, reward: Tensor, weight: Tensor) -> None:
        """argmin |theta - theta_t|^2_W / (2 + D) + w loss, D = 2 S, by bisection in z = x.theta; W grows after it.

        z + a (mu(z) - r) = x.theta_t with a = (1 + S) w x'W^-1 x; the left side grows with z, and z is within a of it.
        """
        if not self.online:
            return
        direction = torch.einsum("rde,re->rd", self.design.inverse, x)
        a, start = (1 + self.S) * weight * (x * direction).sum(-1), (x * self.theta[:, 0]).sum(-1)
        low, high = start - a, start + a
        for _ in range(60):
            z = 0.5 * (low + high)
            above = z + a * (self.family.mean(z) - reward) > start
            low, high = torch.where(above, low, z), torch.where(above, z, high)
        move = (1 + self.S) * weight * (reward - self.family.mean(0.5 * (low + high)))
        self.theta[:, 0] += move[:, None] * direction

    def weigh(self, x: Tensor, given: Tensor) -> Tensor:
        variance = self.family.slope(torch.einsum("rqd,rd->rq", x, self.theta[:, 0]))
        return given.double() * weights(variance, "direct").design
