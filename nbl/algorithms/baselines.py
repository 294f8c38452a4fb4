"""Baselines without a confidence matrix: epsilon-greedy with a network, and uniform play."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from nbl import explore
from nbl.algorithms.neural import NeuralBandit
from nbl.module import BanditModule, Score
from nbl.types import NblError


class EpsilonGreedy(NeuralBandit):
    """The network's best arm, or with probability epsilon any arm, uniformly.

    Args:
        epsilon: how often to explore.
    """

    reads_blocks = True
    randomised = True

    def __init__(self, dim: int, *, epsilon: float = 0.05, **neural: Any) -> None:
        super().__init__(dim, **neural)
        if not 0 <= epsilon <= 1:
            raise NblError(f"EpsilonGreedy(epsilon={epsilon!r}): need a probability, from 0 to 1.")
        self.epsilon = float(epsilon)

    def score(self, contexts: Tensor) -> Score:
        R, q, K, _ = contexts.shape
        mean = self.net(contexts.flatten(1, 2)).view(R, q, K)
        coin, which = self.uniform("epsilon", (q, 2)).unbind(-1)
        explored = coin < self.epsilon
        random = one_hot((which * K).long(), K).to(mean.dtype)
        propensity = self.epsilon / K + (1.0 - self.epsilon) * explore.share(explore.tied(mean), mean.dtype)
        return Score(torch.where(explored.unsqueeze(-1), random, mean), mean, None, propensity, {"explored": explored})


class Uniform(BanditModule):
    """Any arm, uniformly: every arm ties."""

    def score(self, contexts: Tensor) -> Score:
        return Score(torch.zeros(contexts.shape[:3], device=contexts.device))
