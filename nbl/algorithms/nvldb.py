"""NVLDB and NLDB: neural duels explored on the last layer, variance-aware or not.

Variance-Aware Neural Dueling Bandits (seed paper 003 of this project), Algorithm 1, in its twelve forms:
{UCB, TS} x {ASYM, OSYM, CSYM} x {variance-aware, variance-agnostic}.

    paper            here             meaning
    f = theta.phi    self.net         utility of an arm, eq. (2)
    g                self.link        P(x beats y) = g(u(x) - u(y))
    V                self.design      lam I + sum dphi dphi^T / zeta^2, eq. (6)
    a_t              self.nu          confidence width coefficient
    H                self.schedule    rounds between trainings
    1 / zeta_i^2     weight           of duel i in eq. (4) and (6); 1 in NLDB

Variance-awareness is the callback `nbl_callbacks.VarianceWeighting`: it weighs each duel once, when it is made, by
1 / max(sigma, eps)^2, eps = 1 / sqrt(d), with sigma^2 = g (1 - g) of the model (`variance` below) or the environment's
own (`source=oracle`). Without it this is NLDB. Outside a Trainer give the weight to `observe`.

`paper` (algorithm=nvldb_paper): eq. (3) for the weights, eq. (4) as a sum, V grown by line 13; the main text's L = 3,
m = 100, lr 0.001. `practical` (algorithm=nvldb) is appendix E.2.1: two hidden layers of 32, n = 20 steps of Adam, and V
computed anew with the features of today after each training (`rebuild=True`, "reinitialize"). Its weights start as in
`feature` (nbl/networks/mlp.py), because eq. (3) needs an even d; phi has 32 numbers, not d = 5, the ridge is on all
weights, and a_t = 4. As printed (phi of length d, W free, a_t = 1) the network fits the first duels at once, V fills,
and the greedy arm meets itself for ever after, which tells nothing: 97% of rounds on the square utility, with the
regret of chance.

Departures. Training in round t sees the duel of round t, which eq. (4) leaves for the next round; so theta_t of line
12, trained on duels 1 to t-1, is here the model before it trains, which the callback asks. CSYM's set has >= for > (see
`pairs.candidates`). The optimiser's state goes on from round to round.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nbl import links, pairs
from nbl.algorithms.dueling import Dueling
from nbl.algorithms.neural import NeuralBandit
from nbl.design import Full
from nbl.gradient import Gradient
from nbl.history import one_by_one, take
from nbl.links import Duels
from nbl.module import Score, Weight
from nbl.networks import Pairs
from nbl.types import NblError

NET = {"kind": "feature", "width": 32, "depth": 4, "phi": 32}  # two hidden layers, then phi, then theta
FIT = {"optimizer": "adam", "lr": 0.001, "steps": 20, "ridge": 10.0, "towards": "start"}


class NVLDB(Dueling, NeuralBandit):
    """A network on pairs, its last layer solved exactly, and a confidence matrix on differences of its features.

    Args:
        refit: solve for the last layer after the gradient steps (line 10).
        rebuild: V with the features of today after each training; else it grows by those of each duel's own round.
        net, fit: as for every neural bandit, over `NET` and `FIT`; `fit.ridge=None` is lam.
        **dueling: rule, symmetry, nu, link: see `Dueling`; lam, retrain: see `NeuralBandit`.
    """

    def __init__(
        self,
        dim: int,
        *,
        nu: float = 4.0,
        lam: float = 1.0,
        net: dict[str, Any] | None = None,
        fit: dict[str, Any] | None = None,
        refit: bool = True,
        rebuild: bool = True,
        **dueling: Any,
    ) -> None:
        if net is not None and not isinstance(net, dict):
            raise NblError("NVLDB solves for the last layer: net needs a kind (feature, mirrored or standard).")
        options = {**NET, **(net or {})}
        if options["kind"] not in ("feature", "mirrored") and "phi" not in (net or {}):
            del options["phi"]
        training = {**FIT, **(fit or {})}
        if training["ridge"] is None:
            training["ridge"] = lam
        super().__init__(dim, nu=nu, lam=lam, net=options, fit=training, **dueling)
        if self.net.centered:
            raise NblError(f"NVLDB(net.kind={options['kind']}): choose feature, mirrored or standard.")
        if refit and not self.fit.ridge > 0:
            raise NblError("NVLDB(fit.ridge=0): no one last layer is best then; use more, or refit=False.")
        self.refit, self.rebuild = refit, rebuild
        self.design = Full(self.replicas, self.net.head, lam)

    @property
    def loss(self) -> Duels:
        return self.likelihood  # eq. (4)

    def phi(self, x: Tensor) -> Tensor:
        """phi(x; W).    (R, n, d) -> (R, n, D)"""
        return self.net.features(x, last_layer=True).scaled(1.0 / self.net.scale).dense().double()

    def differences(self, x: Tensor) -> Tensor:
        """phi(x_1) - phi(x_2) of pairs side by side.    (R, n, 2 d) -> (R, n, D)"""
        both = self.phi(one_by_one(x))
        return both[:, ::2] - both[:, 1::2]

    @property
    def theta(self) -> Tensor:
        """The last layer, a view.    -> (R, D)"""
        return self.net.theta[:, -self.net.head :]

    def score(self, contexts: Tensor) -> Score:
        phi = self.phi(contexts.flatten(1, 2))  # (R, q K, D)
        mean = torch.bmm(phi, self.theta.double().unsqueeze(-1)).view(contexts.shape[:3])  # theta.phi
        width = pairs.widths(self.design.covariance(Gradient.explicit(phi), contexts.shape[2]))  # ||dphi||_{V^-1}
        return Score(mean, mean, width)

    @torch.no_grad()
    def variance(self, contexts: Tensor, arms: Tensor) -> Tensor:
        """g (1 - g) of the duels, as the model sees them (eq. 5).    (R, K, d), (R, 2) -> (R,)"""
        return self.link.variance(Pairs(self.net)(self.chosen(contexts, arms).flatten(2)).squeeze(1))

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        super().commit(contexts, arms, reward, weight)
        dphi = self.differences(take(contexts, arms).flatten(2))
        self.design.update(Gradient.explicit(dphi), weight.design)  # line 13, with W_{t-1}

    def trained(self, who: Tensor | None = None) -> None:
        if not (self.refit or self.rebuild) or (who is not None and not bool(who.any())):
            return
        data = self.history.data()
        dphi = self.differences(data.inputs)
        if self.refit:  # line 10
            won, ridge = data.targets[:, 0], self.fit.ridge
            centre = self.net.theta0[:, -self.net.head :] if self.fit.to_start else torch.zeros_like(self.theta)
            theta = links.minimise(self.likelihood, dphi, won, data.weights, ridge, centre, self.theta).to(self.theta)
            self.theta.copy_(theta if who is None else torch.where(who.unsqueeze(-1), theta, self.theta))
        if self.rebuild:
            self.design.rebuild(dphi, data.weights.double(), who)

    def retrain(self) -> None:
        super().retrain()
        if self.history.n:
            self.trained()
            data = self.history.data()  # the features of the old weights mean nothing to the new ones
            self.design.rebuild(self.differences(data.inputs), data.weights.double())

    def logdet(self) -> Tensor:
        return self.design.logdet()

    def forget(self) -> None:
        super().forget()
        self.design.reset()

    def diagnostics(self) -> dict[str, Tensor]:
        return {**super().diagnostics(), "design/logdet": self.logdet()}
