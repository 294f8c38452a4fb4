"""SupNeuralUCB: NeuralUCB in levels, whose data do not depend on their own rewards.

Kassraie, Krause. Neural Contextual Bandits without Regret. AISTATS 2022, arXiv:2107.03144 (SupNTK-UCB with networks,
after Chu et al. 2011 and Valko et al. 2013).

    paper      here            meaning
    s          level           1, 2, ...; level s is passed when all widths are at most 2^-s
    Psi^(s)    design.labels   the rounds stored at level s; network s is trained on them only
    sigma^(s)  sigma           sqrt(g^T V^-1 g), g at theta_0, V over Psi^(s)
    beta       self.beta       confidence radius; widths are beta sigma throughout

At each level: if all widths are at most 1/sqrt(T), play the best UCB and store nothing (v = 1); else if all are at most
2^-s, keep the arms with UCB >= max UCB - 2^(1-s) and go on; else play an arm wider than 2^-s and store the round at
s (v = 2).

Departures: the widest arm is played of those that are wide; network and gradients are NeuralGCB's (`ntk`, no 1/m), as
in its paper's comparison. It over-explores by nature: beta is folded into the widths, and while level 1 is wider than
1/2 every round is exploration.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nbl.algorithms.levels import LevelBandit, Walk, at_level

EXPLOIT, EXPLORE = 1, 2


class SupNeuralUCB(LevelBandit):
    """Explores until a level is certain to 2^-s, then drops arms that are worse and goes to the next."""

    def walk(self, contexts: Tensor, allowed: Tensor | None) -> Walk:
        f, sigma = self.predict(contexts)  # (R, q, levels, K)
        width = self.beta * sigma
        ucb = f + width
        s = torch.arange(1, self.levels + 1, device=f.device, dtype=f.dtype)
        kept = torch.ones_like(contexts[..., 0], dtype=torch.bool) if allowed is None else allowed
        sets = []
        for i in range(self.levels):
            sets.append(kept)
            best = ucb[:, :, i].masked_fill(~kept, -torch.inf).amax(-1, keepdim=True)
            kept = kept & (ucb[:, :, i] >= best - 2.0**-i)  # 2^(1-s)
        out = ~torch.stack(sets, 2)
        widest = width.masked_fill(out, -torch.inf).amax(-1)  # (R, q, levels)
        certain = widest <= 1.0 / math.sqrt(self.horizon or 2**self.levels)
        small = widest <= 2.0**-s
        level = (certain | ~small | (s == self.levels)).int().argmax(-1)  # the first that does not go on
        done = (certain | small).gather(-1, level.unsqueeze(-1)).squeeze(-1)
        branch = torch.where(done, EXPLOIT, EXPLORE)
        by_ucb, by_width = (at_level(v.masked_fill(out, -torch.inf), level) for v in (ucb, width))
        score = torch.where(done.unsqueeze(-1), by_ucb, by_width)
        return Walk(level, branch, score, at_level(f, level), at_level(sigma, level))

    def place(self, level: Tensor, branch: Tensor) -> Tensor:
        return torch.where(branch == EXPLORE, level, self.levels)
