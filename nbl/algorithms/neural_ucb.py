"""NeuralUCB: optimism with the network's gradient as feature map.

Zhou, Li, Gu. Neural Contextual Bandits with UCB-based Exploration. ICML 2020, arXiv:1911.04462.

    paper      here            meaning
    f          self.net        reward model
    g/sqrt(m)  self.features   scaled gradient of f in its parameters
    Z          self.design     confidence matrix, lam I + sum g g^T / m
    gamma_t    self.nu         confidence radius

`paper` (algorithm=neural_ucb_paper): the `zhou` network, J steps of gradient descent from theta_0 on the printed sum of
squares with ridge m lam towards theta_0. Departures: gamma is constant where the paper grows gamma_t, and the step
size is 1/(m lam + m L t), because the printed loss diverges with a fixed one.
`practical` (algorithm=neural_ucb): an ordinary network, warm-started Adam on the mean loss, ridge on the weights.

Batched NeuralUCB: Gu, Karbasi, Khosravi, Mirrokni, Zhou. Batched Neural Bandits. 2021, arXiv:2102.13028. The policy,
theta and Z, stands still within a batch. Batches end after B rounds (retrain={"every": B}) or when det Z has grown by
a factor since the last one ended (retrain={"logdet": c}), replica by replica. Departure: the paper's adaptive form
has a fixed number of batches and takes c from it; here c is given.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nbl import explore
from nbl.algorithms.neural import GradientBandit
from nbl.levels import Held
from nbl.module import Score
from nbl.types import NblError


class NeuralUCB(GradientBandit):
    """Plays argmax f(x; theta_{t-1}) + nu ||g(x; theta_{t-1})/sqrt(m)||_{Z^-1}; Z grows before training."""

    reads_blocks = True

    def score(self, contexts: Tensor) -> Score:
        mean, width = self.estimate(contexts)  # f(x; theta_{t-1}), sqrt(g^T Z^-1 g / m)    (R, q, K)
        return Score(explore.ucb(mean, width, self.nu), mean, width)  # Algorithm 1, line 5


class BatchedNeuralUCB(NeuralUCB):
    """NeuralUCB that retrains, and looks at Z, only when a batch ends (`retrain`)."""

    design: Held

    def __init__(self, dim: int, *, lam: float = 1.0, design: str = "dual", **gradient: Any) -> None:
        if design not in ("dual", "auto"):
            raise NblError(f"BatchedNeuralUCB(design={design!r}): a batch is held in the dual form; leave it out.")
        super().__init__(dim, lam=lam, design="dual", **gradient)
        self.design = Held(self.replicas, self.design.size, lam)
        self.design.most = self.horizon

    @torch.no_grad()
    def learn(self) -> None:
        """The batch ends where `retrain` says so: theta and Z move together."""
        due = self.schedule.due(self.history.n, self.logdet())
        if isinstance(due, Tensor) or due:
            who = due if isinstance(due, Tensor) else None
            self.fit(self.net, self.training_data(), self.history.n, who)
            self.design.release(who)

    def retrain(self) -> None:
        super().retrain()
        self.design.release()
