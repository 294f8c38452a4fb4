"""BootstrapNN: an ensemble of networks, each trained on its own random part of the data.

Osband, Blundell, Pritzel, Van Roy. Deep Exploration via Bootstrapped DQN. NeurIPS 2016; Riquelme, Tucker, Snoek. Deep
Bayesian Bandits Showdown. ICLR 2018. As the NeuralTS paper ran it (arXiv:2010.00827, section 5 and appendix A.1).

    paper      here           meaning
    p = 10     self.members   networks
    q = 0.8    self.chance    probability that an observation is in a network's data
    f_j        self.net       the networks; "identical": all start at the same theta_0

An observation is in or out of a network's data for good, decided when it comes.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nbl import explore
from nbl.algorithms.neural import NeuralBandit
from nbl.module import Score, Weight
from nbl.types import NblError


class BootstrapNN(NeuralBandit):
    """Draws one of M networks and plays its best arm; an observation trains each network with probability `chance`.

    Args:
        members: M.
        chance: q.
    """

    reads_blocks = True
    randomised = True
    own_weights = True

    def __init__(self, dim: int, *, members: int = 10, chance: float = 0.8, **neural: Any) -> None:
        super().__init__(dim, members=members, **neural)
        if not 0 < chance <= 1:
            raise NblError(f"BootstrapNN(chance={chance!r}): need a probability above 0, for example 0.8.")
        self.chance = float(chance)

    def score(self, contexts: Tensor) -> Score:
        R, q, K, _ = contexts.shape
        f = self.net(contexts.flatten(1, 2)).view(R, -1, q, K).transpose(1, 2)  # f_j(x)    (R, q, M, K)
        chosen, votes, member = explore.ensemble(f, self.uniform("member", (q,)))
        return Score(chosen, f.mean(2), f.std(2, correction=0), votes, {"member": member})

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        coin = self.uniform("bootstrap", (self.members, arms.shape[1]))  # (R, M, q)
        mine = weight.loss.unsqueeze(1) * (coin < self.chance).to(weight.loss)
        rewards = reward.unsqueeze(1).expand(-1, self.members, -1)
        self.history.append(contexts, arms, rewards, mine)
