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
"""

from __future__ import annotations

from torch import Tensor

from nbl import explore
from nbl.algorithms.neural import GradientBandit
from nbl.module import Score


class NeuralUCB(GradientBandit):
    """Plays argmax f(x; theta_{t-1}) + nu ||g(x; theta_{t-1})/sqrt(m)||_{Z^-1}; Z grows before training."""

    reads_blocks = True

    def score(self, contexts: Tensor) -> Score:
        mean, width = self.estimate(contexts)  # f(x; theta_{t-1}), sqrt(g^T Z^-1 g / m)    (R, q, K)
        return Score(explore.ucb(mean, width, self.nu), mean, width)  # Algorithm 1, line 5
