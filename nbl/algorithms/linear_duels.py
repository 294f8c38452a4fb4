"""Linear duels: MaxInP, CoLSTIM and VACDB. The utility is x.theta; theta is the regularised maximum likelihood.

    MaxInP    Saha. Optimal Algorithms for Stochastic Contextual Preference Bandits. NeurIPS 2021
    CoLSTIM   Bengs, Saha, Huellermeier. Stochastic Contextual Dueling Bandits under Linear Stochastic Transitivity
              Models. ICML 2022
    VACDB     Di, Jin, Wu, Zhao, Farnoud, Gu. Variance-Aware Regret Bounds for Stochastic Contextual Dueling Bandits.
              2023 (arXiv:2310.00968)

    paper           here            meaning
    V, M, Sigma     self.design     lam I + sum w z z^T, z = x_1 - x_2
    eta, c_1, beta  self.nu         exploration
    theta_hat       self.theta      minimiser of lam/2 |theta|^2 - sum w log g((-1)^(1-o) z.theta)

Departures: the ridge is in the likelihood of all three; warm-ups are a callback (`nbl_callbacks.RandomWarmup`). Where
the papers have a radius with constants of the proof, nu stands for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nbl import links, pairs
from nbl.algorithms.dueling import Dueling
from nbl.design import Full
from nbl.gradient import Gradient
from nbl.history import History, take
from nbl.module import Score, Weight
from nbl.types import NblError


class LinearDuel(Dueling):
    """A linear utility and its confidence matrix.

    Args:
        lam: lambda, the ridge.
        **dueling: rule, symmetry, nu, link: see `Dueling`; dim, arms, replicas, seed, horizon: see `BanditModule`.
    """

    exact: tuple[str, ...] = ("theta",)

    def __init__(self, dim: int, *, lam: float = 1.0, **dueling: Any) -> None:
        super().__init__(dim, **dueling)
        if not lam > 0:
            raise NblError(f"{type(self).__name__}(lam={lam!r}): the ridge must be positive, for example 1.0.")
        self.lam = float(lam)
        self.history = History(self.replicas, 2 * dim).double()
        self.design = Full(self.replicas, dim, self.lam)
        self.register_buffer("theta", torch.zeros(self.replicas, dim, dtype=torch.float64))

    theta: Tensor

    def score(self, contexts: Tensor) -> Score:
        mean = torch.einsum("rqkd,rd->rqk", contexts.double(), self.theta)
        covariance = self.design.covariance(Gradient.explicit(contexts.flatten(1, 2)), contexts.shape[2])
        return Score(mean, mean, pairs.widths(covariance))

    @torch.no_grad()
    def variance(self, contexts: Tensor, arms: Tensor) -> Tensor:
        """g (1 - g) of the duels, as the model sees them.    (R, K, d), (R, 2) -> (R,)"""
        x = self.chosen(contexts, arms).double().squeeze(1)
        return self.link.variance(((x[:, 0] - x[:, 1]) * self.theta).sum(-1))

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        self.history.append(contexts, arms, reward.unsqueeze(1), weight.loss)
        x = take(contexts, arms).double()
        self.design.update(Gradient.explicit(x[:, :, 0] - x[:, :, 1]), weight.design)

    @torch.no_grad()
    def learn(self) -> None:
        if self.history.n:
            z, won, weight = self._duels()
            zero = torch.zeros_like(self.theta)
            self.theta.copy_(links.minimise(self.likelihood, z, won, weight, self.lam, zero, self.theta))

    def _duels(self) -> tuple[Tensor, Tensor, Tensor]:
        """Differences (R, n, d), outcomes (R, n) and weights (R, n) of all duels."""
        data = self.history.data()
        first, second = data.inputs.double().chunk(2, -1)
        return first - second, data.targets[:, 0].double(), data.weights.double()

    def forget(self) -> None:
        self.history.reset()
        self.design.reset()
        self.theta.zero_()

    def diagnostics(self) -> dict[str, Tensor]:
        return {"design/logdet": self.logdet()}

    def logdet(self) -> Tensor:
        """How much the confidence matrix has grown.    -> (R,)"""
        return self.design.logdet()


class MaxInP(LinearDuel):
    """Plays the most uncertain pair of the arms that may still be best: UCB-CSYM on the contexts themselves."""

    def __init__(self, dim: int, *, nu: float = 1.0, **linear: Any) -> None:
        super().__init__(dim, nu=nu, **{"symmetry": "csym", **linear})


class CoLSTIM(LinearDuel):
    """First the winner of perturbed utilities, x.theta + e ||x||_{M^-1} with e a clipped Gumbel draw; second the best
    against it, x.theta + nu ||x - x_1||_{M^-1}.

    Args:
        clip: C_thresh, the largest perturbation.
    """

    def __init__(self, dim: int, *, nu: float = 1.0, clip: float = 1.0, **linear: Any) -> None:
        super().__init__(dim, nu=nu, **linear)
        if not clip >= 0:
            raise NblError(f"CoLSTIM(clip={clip!r}): need a number, 0 (no perturbation) or more.")
        self.clip, self.randomised = float(clip), True

    def score(self, contexts: Tensor) -> Score:
        found = super().score(contexts)
        own = self.design.width(Gradient.explicit(contexts.flatten(1, 2))).view(contexts.shape[:3])  # ||x||_{M^-1}
        gumbel = -(-self.uniform("gumbel", tuple(own.shape[1:])).log()).log()
        assert found.mean is not None
        found.score = found.mean + gumbel.clamp(-self.clip, self.clip) * own  # what the first arm maximises
        return found

    def rank(self, score: Score, exploit: bool, allowed: Tensor | None) -> Tensor:
        if exploit:
            return super().rank(score, exploit, allowed)
        assert score.mean is not None and score.width is not None
        first, mean = (
            part if allowed is None else part.masked_fill(~allowed, -torch.inf) for part in (score.score, score.mean)
        )
        return pairs.asym(first, mean.unsqueeze(-2) + self.nu * score.width)


@dataclass
class LayeredScore(Score):
    """With the utilities (R, q, L, K) and widths (R, q, L, K, K) of each layer."""

    utilities: Tensor | None = None
    wide: Tensor | None = None


class VACDB(LinearDuel):
    """Layers l = 1, ..., L, each with the duels that were too wide for it, weighted to the same width.

    From layer 1 on: where all pairs are narrower than alpha, play the best optimistic sum (osym); where all are within
    2^-l, drop the arms that are behind by more than 2^-l beta_l and go to the next layer; else play the widest pair,
    and give the duel to this layer with weight (2^-l / width)^2 (Algorithm 1).

    Departures: beta_l = nu 2^-l (1 + sqrt(Var_l)), Var_l = sum w (o - g)^2 over the layer's duels, stands for (4.3). Of
    the pairs wider than 2^-l the widest is played, where any will do. A duel goes to the first layer that it is too
    wide for, which is the algorithm's where it explores; so duels forced, delayed or played to exploit count too.

    Args:
        alpha: the width at which exploring ends; there are ceil(log2(1 / alpha)) layers.
    """

    exact = ("theta", "thetas", "spread", "level")

    def __init__(self, dim: int, *, nu: float = 1.0, alpha: float = 0.05, **linear: Any) -> None:
        super().__init__(dim, nu=nu, **{"symmetry": "osym", **linear})
        if not 0 < alpha < 1:
            raise NblError(f"VACDB(alpha={alpha!r}): need a width between 0 and 1, for example 0.05.")
        self.alpha, L = float(alpha), math.ceil(math.log2(1.0 / alpha))
        self.layers, self.layered = L, Full(self.replicas * L, dim, self.lam)  # 2^2l Sigma_l: begins at lam I
        self.history = History(self.replicas, 2 * dim, 2).double()  # a duel's layer beside its outcome
        level = 0.5 ** torch.arange(1, L + 1, dtype=torch.float64)
        self.register_buffer("level", level, persistent=False)  # 2^-l
        self.register_buffer("thetas", torch.zeros(self.replicas, L, dim, dtype=torch.float64))
        self.register_buffer("spread", torch.zeros(self.replicas, L, dtype=torch.float64))  # Var_l

    level: Tensor
    thetas: Tensor
    spread: Tensor

    def score(self, contexts: Tensor) -> LayeredScore:
        plain, x = super().score(contexts), contexts.double().flatten(1, 2)
        K, L = contexts.shape[2], self.layers
        covariance = self.layered.covariance(Gradient.explicit(x.repeat_interleave(L, 0)), K)  # (R L, q, K, K)
        wide = pairs.widths(covariance).view(self.replicas, L, -1, K, K).transpose(1, 2) / self.level[:, None, None]
        utilities = torch.einsum("rqkd,rld->rqlk", contexts.double(), self.thetas)
        return LayeredScore(plain.score, plain.mean, plain.width, utilities=utilities, wide=wide)

    def rank(self, score: Score, exploit: bool, allowed: Tensor | None) -> Tensor:
        if exploit:
            return super().rank(score, exploit, allowed)
        assert isinstance(score, LayeredScore) and score.utilities is not None and score.wide is not None
        alive = torch.ones_like(score.score, dtype=torch.bool) if allowed is None else allowed
        beta = self.nu * self.level * (1.0 + self.spread.sqrt())  # (R, L)
        done = torch.zeros_like(alive[..., :1]).unsqueeze(-1)  # (R, q, 1, 1)
        found = torch.full_like(score.wide[:, :, 0], -torch.inf)
        for layer in range(self.layers):
            mean, width, radius = score.utilities[:, :, layer], score.wide[:, :, layer], beta[:, layer, None, None]
            widest = pairs.csym(alive, width)  # -inf for arms that were dropped
            most = widest.amax((-1, -2), keepdim=True)
            narrow, broad = most <= self.alpha, most > self.level[layer]
            best = pairs.csym(alive, pairs.osym(mean, radius.unsqueeze(-1) * width))
            value = torch.where(narrow, best, widest)
            found = torch.where((narrow | broad) & ~done, value, found)
            done = done | narrow | broad
            ahead = mean.masked_fill(~alive, -torch.inf).amax(-1, keepdim=True)
            alive = alive & (mean >= ahead - self.level[layer] * radius)
        return found

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        x = take(contexts, arms).double()
        for i in range(x.shape[1]):  # each changes the widths that the next one meets
            z = (x[:, i, 0] - x[:, i, 1]).repeat_interleave(self.layers, 0).unsqueeze(1)  # (R L, 1, d)
            width = self.layered.width(Gradient.explicit(z)).view(-1, self.layers) / self.level
            wide = width > self.level  # (R, L); the first of these is the duel's layer, if there is one
            mine = wide & (wide.cumsum(-1) == 1)
            share = torch.where(mine, 1.0 / width.square().clamp_min(1e-300), 0.0) * weight.loss[:, i, None]
            self.layered.update(Gradient.explicit(z), share.view(-1, 1))
            layer = torch.where(mine.any(-1), mine.double().argmax(-1), -1)
            one = slice(i, i + 1)
            targets = torch.stack([reward[:, one].double(), layer.double().unsqueeze(1)], 1)
            self.history.append(contexts[:, one], arms[:, one], targets, share.sum(-1, keepdim=True))
        self.design.update(Gradient.explicit(x[:, :, 0] - x[:, :, 1]), weight.design)

    @torch.no_grad()
    def learn(self) -> None:
        super().learn()
        for layer in range(self.layers if self.history.n else 0):
            z, won, weight = self._duels()
            weight = weight * (self.history.data().targets[:, 1] == layer)
            start = self.thetas[:, layer]
            theta = links.minimise(self.likelihood, z, won, weight, self.lam, torch.zeros_like(start), start)
            missed = won - self.link.chance(torch.bmm(z, theta.unsqueeze(-1)).squeeze(-1))
            self.thetas[:, layer] = theta
            self.spread[:, layer] = self.level[layer] ** 2 * (weight * missed.square()).sum(-1)

    def forget(self) -> None:
        super().forget()
        self.layered.reset()
        self.thetas.zero_()
        self.spread.zero_()
