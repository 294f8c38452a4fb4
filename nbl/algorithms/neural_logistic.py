"""Neural logistic bandits: a network inside a sigmoid, rewards that are coins. NeuralLog-UCB and -TS, NCBF-UCB.

Bae, Lee. Neural Logistic Bandits. arXiv:2505.02069v2: Algorithms 1 and 2, appendix I (Thompson sampling).
Verma, Dai, Lin, Jaillet, Low. Neural Dueling Bandits. ICLR 2025 (NCBF-UCB: contextual bandits with binary feedback).

    paper            here              meaning
    mu               LOGISTIC.mean     sigmoid; mu' is the variance of a coin, at most R = 1/4
    f, g/sqrt(m)     net, features     latent reward and its gradient
    V_t              design            kappa lambda_t I + sum g g^T / m                         (versions 1, NCBF)
    W_t              design            lambda_t I + sum mu'(f(x_i; theta_i)) g g^T / m          (versions 2)
    d~_t             effective         a second matrix, unweighted, for the running effective dimension
    nu_t^(1), ^(2)   radius            equations (1), (4)
    lambda_t         ridge             equation (3), in the loss and in the confidence matrix
    S, kappa, delta  S, kappa, delta   norm of the parameter, 1 / smallest variance, confidence

`paper` (theory=True): lambda_t, iota_t and nu_t as printed (nbl.bounds, with C_1 = C_6 = C_7 = 1), the `zhou` network,
gradients at theta_0, J steps of gradient descent from theta_0 on the sum of losses with ridge m lambda_t, the exact
matrix; nu multiplies the radius and is 1. Departures: the step size has t for T; the appendix samples with nu_T, here
with the causal nu_{t-1}; Remark I.2 prints the norm in sigma'^2 unsquared, a slip. A ridge that moves makes a grown
Cholesky factor inexact: V_t and W_t are refactored, O(t^3), whenever lambda_t has moved by `ridge_step` (10%) since the
last time, replica by replica. In between the smaller ridge stands, so that widths are at most 5% too wide.

`practical` (theory=False), section 7 and appendix A: fixed lambda, gradients at theta_t without 1/sqrt(m), the penalty
lambda |theta|^2, the mean of versions 2 is f(x; theta_{t-1}), and the bonus is nu times the order of the theory's in
kappa, S, lambda and d~_t. The paper does not print that expression; ours is its equations with every absolute constant
and logarithm set to 1, with b = (1 + sqrt(L) S + L S^2) (sqrt(d~_t) + sqrt(L / lambda)) + 1:

    NeuralLog-UCB-1   mu(f) + nu R sqrt(kappa) b |g|_{V^-1}       d~_t = log det(sum R g g^T + I)
    NeuralLog-UCB-2   f     + nu b |g|_{W^-1}                     the same
    NeuralLog-TS-1    N(f, (nu sqrt(kappa) b |g|_{V^-1})^2)       the same
    NeuralLog-TS-2    N(f, (nu b |g|_{W^-1})^2)                   the same
    NCBF-UCB          f + nu (kappa sqrt(d~_t) + S sqrt(kappa lambda) + 1) |g|_{V^-1}
                                                                  d~_t = log det(sum g g^T / kappa + I)

NCBF-UCB's paper preset has kappa sqrt(d~_t + 2 log(1/delta)), d~_t = log det(V_t) - log det(kappa lambda I), and a
fixed lambda. Gradients of round i enter d~ at theta_{i-1}, V and W at theta_i, after training (line 6).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nbl import bounds, explore
from nbl import design as designs
from nbl.algorithms.neural import GradientBandit
from nbl.bounds import R
from nbl.gradient import Gradient
from nbl.history import Data, take
from nbl.losses import Likelihood, Logistic
from nbl.module import Score, Weight
from nbl.types import NblError
from nbl.values import simple
from nbl_callbacks.variance import weights

LOGISTIC = Logistic()


class NeuralLogistic(GradientBandit):
    """What the five share: the coin's likelihood, the radius, the effective dimension, the ridge that moves.

    Args:
        nu: multiplies the bonus.
        lam: lambda, fixed; of no use where `theory` moves it.
        S: bound on the norm of the parameter.
        kappa: 1 / the smallest variance of a reward, at least 4.
        delta: the bounds hold with probability 1 - delta.
        theory: lambda_t, iota_t and nu_t as printed; False: the order of the radius, fixed lambda.
        gradient_at: `start` (theta_0) or `now`; None: as `theory` says.
        scaled: gradients divided by sqrt(m); None: as `theory` says.
        ridge_step: refactor when lambda_t has moved by this factor.
        **neural: see `NeuralBandit` and `GradientBandit`. Without `fit.ridge` the penalty is lambda |theta|^2.
    """

    bernoulli = True
    grows_after_learning = True  # line 6 follows line 5
    weighs_variance = False  # True: W, weights mu'(f(x_i; theta_i)); False: V, ridge kappa lambda
    moves = True  # lambda_t moves where `theory` says so
    exact: tuple[str, ...] = ("shrink",)
    loss = Likelihood(LOGISTIC)

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
        scaled: bool | None = None,
        ridge_step: float = 1.1,
        design: str = "auto",
        gradient_at: str | None = None,
        fit: dict[str, Any] | None = None,
        **neural: Any,
    ) -> None:
        name = type(self).__name__
        check(name, S=S, kappa=kappa, delta=delta)
        if not ridge_step >= 1:
            raise NblError(f"{name}(ridge_step={ridge_step!r}): need a factor of 1 (refactor every round) or more.")
        fit = dict(fit or {})
        if "ridge" not in fit and not theory:
            fit["ridge"] = 2 * lam
        self.S, self.kappa, self.delta, self.theory = float(S), float(kappa), float(delta), bool(theory)
        self.scaled, self.ridge_step = self.theory if scaled is None else scaled, float(ridge_step)
        net = neural.get("net")
        self.L = int(net.get("depth", 2)) if isinstance(net, Mapping) else 2
        self.moving = self.theory and self.moves
        self.lam0 = bounds.lambda_0(self.S, self.delta, self.L) if self.moving else float(lam)
        at = gradient_at or ("start" if theory else "now")
        super().__init__(dim, nu=nu, lam=lam, design=design, fit=fit, gradient_at=at, **neural)
        size = self.design.size
        base = self.lam0 if self.weighs_variance else self.kappa * self.lam0
        self.design = designs.build(design, self.replicas, size, base, self.horizon)
        self.effective = designs.build(design, self.replicas, size, self.effective_ridge(), self.horizon)
        self.register_buffer("shrink", torch.ones(self.replicas, dtype=torch.float64))  # lambda_0 / lambda_t in U

    shrink: Tensor

    def effective_ridge(self) -> float:
        """d~ = log det(sum g g^T / this + I)."""
        return (self.lam0 if self.theory else 1.0) / R

    # Estimates --------------------------------------------------------------------------------------------------------

    def features(self, x: Tensor) -> Gradient:
        g = super().features(x)
        return g if self.scaled else g.scaled(1.0 / self.net.scale)

    def latent(self, x: Tensor) -> Tensor:
        """f(x; theta_{t-1}); in Algorithm 2 as printed g(x; theta_0)'(theta_{t-1} - theta_0).    (R, n, d) -> (R, n)"""
        if not (self.theory and self.weighs_variance):
            f: Tensor = self.net(x)
            return f
        g = self.net.features(x, self.net.theta0).scaled(1.0 / self.net.scale).dense()
        return torch.einsum("rnp,rp->rn", g, self.net.theta - self.net.theta0)

    def estimate(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """The latent estimate and ||g||_{V^-1} (or W^-1), float64.    (R, q, K, d) -> (R, q, K) twice"""
        x = contexts.flatten(1, 2)
        width = self.design.width(self.features(x)) * self.shrink.sqrt()[:, None]
        return self.latent(x).double().view(contexts.shape[:3]), width.view(contexts.shape[:3])

    def radius(self) -> Tensor:
        """What ||g|| is multiplied by: nu_{t-1} of (4) or sqrt(kappa) nu_{t-1} of (1), or its order.    -> (R,)"""
        d = self.effective.logdet()
        if self.theory:
            iota = bounds.iota_t(d, self.history.n, self.lam0, self.delta, self.L)
        else:
            iota = d.sqrt() + math.sqrt(self.L / self.lam)
        nu = torch.as_tensor(bounds.nu_t(iota, self.S, self.L))
        return nu if self.weighs_variance else math.sqrt(self.kappa) * nu

    def spread(self, width: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The uncertainty of the latent reward, nu radius ||g||; and what is logged."""
        radius, d = (part[:, None].expand(width.shape[:2]) for part in (self.radius(), self.effective.logdet()))
        return self.nu * radius.unsqueeze(-1) * width, {"radius": radius, "effective_dimension": d}

    def optimistic(self, contexts: Tensor, in_reward: bool) -> Score:
        """UCB on the reward, mu(f) + R bonus, or on the latent reward."""
        f, width = self.estimate(contexts)
        bonus, extra = self.spread(width)
        mean = LOGISTIC.mean(f)
        return Score(explore.ucb(mean if in_reward else f, bonus, R if in_reward else 1.0), mean, width, extra=extra)

    def sampled(self, contexts: Tensor) -> Score:
        """One draw an arm of the latent reward."""
        f, width = self.estimate(contexts)
        sd, extra = self.spread(width)
        noise = self.normal("thompson", tuple(f.shape[1:])).double()
        return Score(explore.thompson(f, sd, 1.0, noise), LOGISTIC.mean(f), width, extra=extra)

    @torch.no_grad()
    def variance(self, contexts: Tensor, arms: Tensor) -> Tensor:
        """mu'(f) of the arms played: what `VarianceWeighting` asks for.    (R, K, d), (R,) -> (R,)"""
        return LOGISTIC.slope(self.net(self.chosen(contexts, arms))).squeeze(1)

    # What is learnt ---------------------------------------------------------------------------------------------------

    def ridge(self) -> Tensor | None:
        """lambda_t, where it moves.    -> (R,)"""
        if not self.moving:
            return None
        d = self.effective.logdet()
        return torch.as_tensor(bounds.lambda_t(d, self.history.n, self.lam0, self.S, self.delta, self.L))  # line 4

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        self.effective.update(self.features(take(contexts, arms)), weight.design)
        super().commit(contexts, arms, reward, weight)

    def training_data(self) -> Data:
        data = super().training_data()
        return data._replace(rest=torch.zeros_like(data.rest))  # sums per arm leave nothing out of this loss

    def weigh(self, x: Tensor, given: Tensor) -> Tensor:
        weight = given.double() * self.shrink[:, None]
        if not self.weighs_variance:
            return weight
        variance = LOGISTIC.slope(self.net(x).double())  # mu'(f(x_t; theta_t))
        return weight * weights(variance, "direct").design

    def _grow(self) -> None:
        grows = self.pending.shape[1] > 0
        super()._grow()  # line 6
        lam = self.ridge()
        if lam is not None and grows:
            new = self.lam0 / lam
            ratio = new / self.shrink
            off = (ratio > self.ridge_step) | (ratio < 1.0 / self.ridge_step)
            if self.ridge_step == 1.0 or bool(off.any()):
                who = torch.ones_like(off) if self.ridge_step == 1.0 else off
                self.design.rescale(ratio, who)
                self.shrink = torch.where(who, new, self.shrink)

    def forget(self) -> None:
        super().forget()
        self.effective.reset()
        self.shrink.fill_(1.0)

    def retrain(self) -> None:
        super().retrain()
        self.effective.reset()
        if self.history.n:
            data = self.history.data()
            self.effective.update(self.features(data.inputs), data.weights)

    def diagnostics(self) -> dict[str, Tensor]:
        found = {**super().diagnostics(), "design/radius": self.radius()}
        found["design/effective_dimension"] = self.effective.logdet()
        lam = self.ridge()
        return found if lam is None else {**found, "design/ridge": lam}


class NeuralLogUCB1(NeuralLogistic):
    """Plays argmax mu(f(x; theta_{t-1})) + R sqrt(kappa) nu_{t-1} ||g/sqrt(m)||_{V^-1} (Algorithm 1, line 2)."""

    def score(self, contexts: Tensor) -> Score:
        return self.optimistic(contexts, in_reward=True)


class NeuralLogUCB2(NeuralLogistic):
    """Plays argmax g(x; theta_0)'(theta_{t-1} - theta_0) + nu_{t-1} ||g/sqrt(m)||_{W^-1} (Algorithm 2, line 2)."""

    weighs_variance = True

    def score(self, contexts: Tensor) -> Score:
        return self.optimistic(contexts, in_reward=False)


class NeuralLogTS1(NeuralLogistic):
    """Plays argmax of r ~ N(f(x; theta_{t-1}), nu^2 sigma^2), sigma^2 = kappa lambda_t ||g/sqrt(m)||^2_{V^-1}.

    nu = nu^(1) / sqrt(lambda_t) (appendix I): lambda_t cancels.
    """

    randomised = True

    def score(self, contexts: Tensor) -> Score:
        return self.sampled(contexts)


class NeuralLogTS2(NeuralLogTS1):
    """Plays argmax of r ~ N(g(x; theta_0)'(theta_{t-1} - theta_0), nu^2 sigma^2), sigma^2 = lambda_t ||g||^2_{W^-1}.

    nu = nu^(2) / sqrt(lambda_t) (Remark I.2): lambda_t cancels.
    """

    weighs_variance = True


class NCBFUCB(NeuralLogistic):
    """Plays argmax f(x; theta_{t-1}) + (kappa sqrt(d~ + 2 log(1/delta)) + S sqrt(kappa lambda) + 1) ||g||_{V^-1}."""

    moves = False

    def effective_ridge(self) -> float:
        return self.kappa * (self.lam0 if self.theory else 1.0)

    def radius(self) -> Tensor:
        log = 2 * math.log(1 / self.delta) if self.theory else 0.0
        d = self.effective.logdet()
        return self.kappa * (d + log).sqrt() + self.S * math.sqrt(self.kappa * self.lam) + 1

    def score(self, contexts: Tensor) -> Score:
        return self.optimistic(contexts, in_reward=False)


def check(name: str, **values: Any) -> None:
    """S, kappa and delta, where they make sense."""
    for key, value in values.items():
        real = isinstance(simple(value), int | float) and not isinstance(value, bool)
        good = {"S": lambda v: 0 < v < math.inf, "kappa": lambda v: 4 <= v < math.inf, "delta": lambda v: 0 < v < 1}
        if not real or not good[key](value):
            need = {"S": "above 0", "kappa": "of 4 (a coin's variance is at most 1/4) or more", "delta": "in (0, 1)"}
            raise NblError(f"{name}({key}={value!r}): need a number {need[key]}.")
