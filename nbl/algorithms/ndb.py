"""NDB: neural duels explored on the gradient of the whole network.

Verma, Dai, Lin, Jaillet, Low. Neural Dueling Bandits. 2024 (arXiv:2407.17112), NDB-UCB and NDB-TS.

    paper        here            meaning
    h            self.net        utility of an arm
    mu           self.link       P(x beats y) = mu(u(x) - u(y))
    g / sqrt(m)  self.features   scaled gradient of h in its parameters
    V            self.design     lam I + sum dg dg^T / m, of differences of gradients
    sigma        width           sqrt(lam) ||dg / sqrt(m)||_{V^-1}
    nu           self.nu         exploration

The first arm is the best mean, the second maximises mean + nu sigma (UCB), or draws from N(mean, nu^2 sigma^2) (TS):
`asym` of nbl/algorithms/dueling.py; the other two rules work as well. Confidence is exact: a difference of gradients
stays factored (nbl/gradient.py), and the K x K widths of a round take K projections, not K^2 (`Design.between`).

Departures: kappa, the smallest slope of mu, is 1 in V and sigma (nu takes it up); an ordinary network with warm-started
Adam on the mean loss, ridge on the weights. Two hidden layers of 50, trained every 20 rounds by 50 steps, are the
paper's. `gradient_at=start` takes gradients at theta_0, as the analysis does; the default is the current weights.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nbl import pairs
from nbl.algorithms.dueling import Dueling
from nbl.algorithms.neural import GradientBandit
from nbl.links import Duels
from nbl.module import Score


class NDB(Dueling, GradientBandit):
    """Plays the best mean against the arm that may be better still; V grows before training.

    Args:
        **options: rule, symmetry, nu, link: see `Dueling`; lam, net, fit, retrain, design, gradient_at, last_layer: see
            `GradientBandit`.
    """

    def __init__(self, dim: int, **options: Any) -> None:
        super().__init__(dim, **options)

    @property
    def loss(self) -> Duels:
        return self.likelihood

    def score(self, contexts: Tensor) -> Score:
        x = contexts.flatten(1, 2)
        mean = self.net(x).view(contexts.shape[:3])  # h(x; theta_{t-1})    (R, q, K)
        covariance = self.design.covariance(self.features(x), contexts.shape[2])
        sigma = self.lam**0.5 * pairs.widths(covariance)  # of each pair    (R, q, K, K)
        return Score(mean, mean, sigma)
