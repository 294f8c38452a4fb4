"""NeuralTS: Thompson sampling from a posterior whose variance is built on the network's gradient.

Zhang, Zhou, Li, Gu. Neural Thompson Sampling. ICLR 2021, arXiv:2010.00827.

    paper      here            meaning
    f          self.net        reward model, mean of the posterior
    g/sqrt(m)  self.features   scaled gradient of f in its parameters
    U          self.design     lam I + sum g g^T / m
    sigma_t,k  width           sqrt(lam g^T U^-1 g / m)
    nu         self.nu         exploration

`paper` (algorithm=neural_ts_paper): the `zhou` network, J steps of gradient descent from theta_0 on (2.3) with the
step size of Theorem 3.5. Departure: nu is given, not computed from the effective dimension. `practical`
(algorithm=neural_ts): an ordinary network, warm-started Adam on the mean loss, ridge on the weights. Section 5.1's
diagonal matrix is design=diagonal; the default is the exact one.
"""

from __future__ import annotations

from torch import Tensor

from nbl import explore
from nbl.algorithms.neural import GradientBandit
from nbl.module import Score


class NeuralTS(GradientBandit):
    """Plays argmax of r_k ~ N(f(x_k; theta_{t-1}), nu^2 sigma_k^2); U grows after training (lines 9 and 10)."""

    reads_blocks = True
    grows_after_learning = True
    randomised = True

    def score(self, contexts: Tensor) -> Score:
        mean, norm = self.estimate(contexts)  # f(x; theta_{t-1}), sqrt(g^T U^-1 g / m)    (R, q, K)
        sigma = self.lam**0.5 * norm  # line 5
        noise = self.normal("thompson", tuple(sigma.shape[1:]))
        return Score(explore.thompson(mean, sigma, self.nu, noise), mean, sigma)  # line 6
