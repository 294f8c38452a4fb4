"""Neural-ES: ensemble sampling with neural networks; and Neural-PHE, which it is compared with.

Ensemble Sampling for Nonlinear Contextual Bandits, arXiv:2510.10730, Algorithm 1 and section 4.3.

    paper      here           meaning
    m          self.members   ensemble size
    f_t        self.net       the networks; all start at the same theta_0
    sigma_R    self.nu        standard deviation of the perturbations Z ~ P_R = N(0, sigma_R^2)
    tau        self.warmup    rounds of warm-up, each arm in turn; by default each arm once
    N, L       net            width and depth of the network

`paper` (algorithm=neural_es_paper): the `zhou` network, gradient descent from theta_0 on the printed sum of squares
with ridge N lam towards theta_0, step size 1/(N lam + N L t) (Theorem 5.11), because the printed rate of 0.01
diverges. `practical` (algorithm=neural_es): an ordinary network, warm-started Adam on the mean loss, ridge on the
weights. The doubling trick of section 6 is a callback, not part of this file.

Neural-PHE (Jia, Zhang, Zhou, Gu, Wang. Learning Neural Contextual Bandits through Perturbed Rewards. ICLR 2022) has one
network and perturbs every reward of the past afresh in every round.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nbl import explore
from nbl.algorithms.neural import NeuralBandit
from nbl.history import ArmHistory, Data
from nbl.module import Score, Weight
from nbl.types import NblError
from nbl.values import whole


class NeuralES(NeuralBandit):
    """Draws one of M networks, each trained on rewards with its own, once drawn, perturbations, and plays its best arm.

    Args:
        members: M.
        nu: sigma_R.
        warmup: rounds that play the arms in turn; None is once each.
    """

    reads_blocks = randomised = ensemble = True
    may_change = ("members", "nu")

    def __init__(
        self, dim: int, *, members: int = 10, nu: float = 0.1, warmup: int | None = None, **neural: Any
    ) -> None:
        super().__init__(dim, members=members, **neural)
        if not nu >= 0:
            raise NblError(f"NeuralES(nu={nu!r}): the perturbations' standard deviation must be 0 or more.")
        if warmup is not None and not whole(warmup, 0):
            raise NblError(f"NeuralES(warmup={warmup!r}): need a whole number of rounds, or None for each arm once.")
        self.nu, self.warmup = float(nu), warmup

    def score(self, contexts: Tensor) -> Score:
        R, q, K, _ = contexts.shape
        f = self.net(contexts.flatten(1, 2)).view(R, -1, q, K).transpose(1, 2)  # f_j(x)         (R, q, M, K)
        f = self.team.join(f, self.members, 2)  # those of other processes too
        chosen, votes, member = explore.ensemble(f, self.uniform("member", (q,)))  # lines 4 and 5
        if self.round - self.began < (K if self.warmup is None else self.warmup):  # line 2: each arm in turn
            chosen = votes = explore.in_turn(self.round - self.began, q, K).to(f).expand(R, q, K)
            member = torch.full_like(member, -1)
        return Score(chosen, f.mean(2), f.std(2, correction=0), votes, {"member": member})

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        noise = self.team.mine(self.normal("perturbation", (self.members, arms.shape[1])), 1)  # line 7    (R, M, q)
        self.history.append(contexts, arms, reward.unsqueeze(1) + self.nu * noise, weight.loss)  # line 8


class NeuralPHE(NeuralBandit):
    """Plays argmax f, f trained on rewards that are all perturbed afresh, N(0, nu^2), at every retraining.

    With fixed arms the n perturbations of an arm are one draw of their mean, N(0, nu^2 / n): equal in law.

    Args:
        nu: sigma_R.
        warmup: rounds that play the arms in turn; None is once each.
    """

    reads_blocks = True
    randomised = True

    def __init__(self, dim: int, *, nu: float = 0.1, warmup: int | None = None, **neural: Any) -> None:
        super().__init__(dim, **neural)
        if not nu >= 0:
            raise NblError(f"NeuralPHE(nu={nu!r}): the perturbations' standard deviation must be 0 or more.")
        if warmup is not None and not whole(warmup, 0):
            raise NblError(f"NeuralPHE(warmup={warmup!r}): need a whole number of rounds, or None for each arm once.")
        self.nu, self.warmup = float(nu), warmup

    def score(self, contexts: Tensor) -> Score:
        R, q, K, _ = contexts.shape
        mean = self.net(contexts.flatten(1, 2)).view(R, q, K)
        if self.round - self.began < (K if self.warmup is None else self.warmup):
            turn = explore.in_turn(self.round - self.began, q, K).to(mean).expand(R, q, K)
            return Score(turn, mean, None, turn)
        return Score(mean, mean)

    def training_data(self) -> Data:
        data = self.history.data()
        n = data.weights if isinstance(self.history, ArmHistory) else torch.ones_like(data.weights)
        noise = self.streams.normal("perturbation", self.round, n.shape[1:], n.device, ahead=False).to(n.dtype)
        noise = self.nu * noise / n.clamp_min(1.0).sqrt()
        return data._replace(targets=data.targets + noise.unsqueeze(1))
