"""NeuralLinear and Neural-LinUCB: a network learns the features, exploration happens on the last layer only.

    NeuralLinear    Riquelme, Tucker, Snoek. Deep Bayesian Bandits Showdown. ICLR 2018: rule=ts
    Neural-LinUCB   Xu, Wen, Zhao, Gu. Neural Contextual Bandits with Deep Representation. ICLR 2022: rule=ucb

    paper      here            meaning
    phi(x; w)  self.features   last hidden layer (its gradient in the last layer's weights)
    A          self.design     lam I + sum phi phi^T
    b          self.moment     sum r phi
    theta      self.head       A^-1 b, ridge regression on the features

Departures: NeuralLinear's noise variance is a constant (nu), not drawn from an inverse Gamma. Features of past
rounds are recomputed when the network changes (`recompute=True`, Riquelme et al.), or kept as they were observed
(Xu et al.).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nbl import explore
from nbl.algorithms.neural import NeuralBandit
from nbl.design import Full, root
from nbl.gradient import Gradient
from nbl.history import take
from nbl.module import Score, Weight
from nbl.types import NblError


class NeuralLinear(NeuralBandit):
    """Ridge regression on the network's last hidden layer, explored by Thompson sampling or optimism.

    Args:
        nu: how much to explore.
        rule: `ts` draws theta ~ N(A^-1 b, nu^2 A^-1); `ucb` adds nu sqrt(phi^T A^-1 phi).
        recompute: rebuild A and b with the new features after each retraining.
    """

    reads_blocks = True
    exact = ("moment",)

    def __init__(
        self, dim: int, *, nu: float = 0.3, rule: str = "ts", recompute: bool = True, lam: float = 1.0, **neural: Any
    ) -> None:
        super().__init__(dim, lam=lam, **neural)
        if rule not in ("ts", "ucb"):
            raise NblError(f"NeuralLinear(rule={rule!r}): choose ts or ucb.")
        if not nu >= 0:
            raise NblError(f"NeuralLinear(nu={nu!r}): need a number, 0 (greedy) or more.")
        self.nu, self.rule, self.recompute, self.randomised = float(nu), rule, recompute, rule == "ts"
        size = self.features(torch.zeros(self.replicas, 1, self.length)).shape[-1]
        self.design = Full(self.replicas, size, lam)
        self.register_buffer("moment", torch.zeros(self.replicas, size, dtype=torch.float64))

    moment: Tensor

    def features(self, x: Tensor) -> Tensor:
        """phi(x; w), scaled by 1 / sqrt(m).    (R, n, d) -> (R, n, m)"""
        return self.net.features(x, last_layer=True).dense().double()

    def score(self, contexts: Tensor) -> Score:
        shape = contexts.shape[:3]
        phi = self.features(contexts.flatten(1, 2))  # (R, q K, m)
        head = torch.bmm(self.design.inverse, self.moment.double().unsqueeze(-1))  # theta = A^-1 b
        mean, width = torch.bmm(phi, head).view(shape), self.design.width(Gradient.explicit(phi)).view(shape)
        if self.rule == "ucb":
            return Score(explore.ucb(mean, width, self.nu), mean, width)
        noise = self.normal("thompson", (shape[1], phi.shape[-1])).double()  # one draw a question
        theta = self.nu * torch.einsum("rde,rqe->rqd", root(self.design.inverse, self.lam), noise)
        return Score(mean + torch.einsum("rqkd,rqd->rqk", phi.view(*shape, -1), theta), mean, width)

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        super().commit(contexts, arms, reward, weight)
        self._add(take(contexts, arms), reward, weight.loss)

    def _add(self, x: Tensor, reward: Tensor, weight: Tensor) -> None:
        phi = self.features(x)
        self.design.update(Gradient.explicit(phi), weight)
        self.moment += torch.bmm((reward * weight).double().unsqueeze(1), phi).squeeze(1)

    def trained(self, who: Tensor | None = None) -> None:
        if self.recompute:
            self._rebuild()

    def retrain(self) -> None:
        super().retrain()
        self._rebuild()

    def _rebuild(self) -> None:
        """A = lam I + sum w phi phi^T and b = sum w r phi, with the features of today."""
        data = self.history.data()
        phi, weight = self.features(data.inputs), data.weights.double()
        self.design.rebuild(phi, weight)
        self.moment.copy_(torch.bmm((data.targets[:, 0].double() * weight).unsqueeze(1), phi).squeeze(1))

    def logdet(self) -> Tensor:
        return self.design.logdet()

    def forget(self) -> None:
        super().forget()
        self.design.reset()
        self.moment.zero_()

    def diagnostics(self) -> dict[str, Tensor]:
        return {**super().diagnostics(), "design/logdet": self.logdet()}
