"""NeuralGCB: guided confidence bounds, exploration by level of certainty.

Salgia, Vakili, Zhao. Provably and Practically Efficient Neural Contextual Bandits. 2022, arXiv:2206.00099, Algorithm 1.

    paper        here            meaning
    R            self.levels     ceil(log2 T) levels, one network each, all from the same W_0
    Psi^(r)      design.labels   the rounds of level r; self.psi counts them
    f, W^(r)     self.net        network r, trained on Psi^(r) only
    sigma^(r)    sigma           sqrt(g^T V^-1 g), g at W_0, V = lam I + sum over Psi^(r) of g g^T (6, 7)
    beta         self.beta       S + 2 nu sqrt(log(1/delta)), Theorem 2
    sigma_0      self.sigma0     a level is passed when all widths are at most sigma_0 2^-r
    eta_0        self.eta0       the best UCB is played when its width is at most eta_0 / sqrt(t)
    alpha_0      self.alpha0     rounds without exploration at level r: alpha_0 4^r
    ctr          self.ctr        rounds that ended at level r because it is too uncertain
    v_t          branch          1 exploit, 2 explore, 3 greedy by the level above
    q_r          batch           network r is retrained when q_r rounds were added to Psi^(r)

    lines 4-8, 17     `walk`: predictions and candidate sets of all levels at once; levels below the last one visited
                      are computed and not used
    lines 9-12        small and sure: v = 1
    lines 20-24       not small: v = 2 or 3
    lines 14, 26      `place`: an exploitation joins Psi^(r+1), the others Psi^(r)
    line 25           `commit`: ctr
    GetPredictions    `learn` in nbl/algorithms/levels.py

Departures. Line 7 retrains a level when it is next visited; here it is retrained as soon as its batch is full, so that
acting changes nothing. Line 21 allows any uncertain arm; here it is the most uncertain one. The last level has no
next one: what would descend from it is an exploitation there. The authors' public code has constants in place of
eta_0/sqrt(t) and alpha_0 4^r; this is the printed form. Rounds t are counted from the last restart. If a callback
forces another arm, the round still belongs where the algorithm's own walk ended. Adaptive batches are
batch={"logdet": c}.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nbl.algorithms.levels import LevelBandit, Walk, at_level
from nbl.module import Weight
from nbl.types import NblError
from nbl.values import simple

EXPLOIT, EXPLORE, GREEDY = 1, 2, 3  # v_t


class NeuralGCB(LevelBandit):
    """Goes down the levels while they are certain; exploits, explores or plays greedily where it stops.

    Args:
        sigma0: sigma_0, the width allowed at level 0; it belongs to the scale of contexts, network and lam.
        eta0: eta_0.
        alpha0: alpha_0.
        **level: levels, beta, norm, noise, delta, batch, lam, net, fit and the problem: see `LevelBandit`.
    """

    def __init__(self, dim: int, *, sigma0: float = 1.0, eta0: float = 1.0, alpha0: float = 1.0, **level: Any) -> None:
        super().__init__(dim, **level)
        sigma0, eta0, alpha0 = (simple(value) for value in (sigma0, eta0, alpha0))
        for name, value in (("sigma0", sigma0), ("eta0", eta0), ("alpha0", alpha0)):
            if not (isinstance(value, int | float) and value >= 0):
                raise NblError(f"NeuralGCB({name}={value!r}): need a number, 0 or more.")
        self.sigma0, self.eta0, self.alpha0 = float(sigma0), float(eta0), float(alpha0)
        self.register_buffer("ctr", torch.zeros(self.replicas, self.levels, dtype=torch.int64))

    ctr: Tensor

    def walk(self, contexts: Tensor, allowed: Tensor | None) -> Walk:
        f, sigma = self.predict(contexts)  # line 7                                      (R, q, levels, K)
        ucb, lcb = f + self.beta * sigma, f - self.beta * sigma
        r = torch.arange(1, self.levels + 1, device=f.device, dtype=f.dtype)
        kept = torch.ones_like(contexts[..., 0], dtype=torch.bool) if allowed is None else allowed  # line 4
        sets = []
        for i in range(self.levels):
            sets.append(kept)
            highest = lcb[:, :, i].masked_fill(~kept, -torch.inf).amax(-1, keepdim=True)
            kept = kept & (ucb[:, :, i] >= highest)  # line 17
        out = ~torch.stack(sets, 2)
        inside = {"f": f.masked_fill(out, -torch.inf), "sigma": sigma.masked_fill(out, -torch.inf)}
        inside["ucb"] = ucb.masked_fill(out, -torch.inf)

        small = inside["sigma"].amax(-1) <= self.sigma0 * 2.0**-r  # lines 8 and 9        (R, q, levels)
        chosen = inside["ucb"].argmax(-1, keepdim=True)  # line 10
        t = max(1, self.round - self.began + 1)
        sure = sigma.gather(-1, chosen).squeeze(-1) <= self.eta0 / math.sqrt(t)  # line 11
        stop = ~small | sure | (r == self.levels)
        level = stop.int().argmax(-1)  # the first                                       (R, q)
        passed = small.gather(-1, level.unsqueeze(-1)).squeeze(-1)
        spent = (self.ctr > self.alpha0 * 4.0**r).gather(1, level)  # line 20
        unsure = torch.where((level == 0) | spent, EXPLORE, GREEDY)
        branch = torch.where(passed, EXPLOIT, unsure)

        by_ucb, by_width = at_level(inside["ucb"], level), at_level(inside["sigma"], level)  # lines 12 and 21
        above = (level - 1).clamp_min(0)
        by_mean = at_level(inside["f"], above)  # line 23: max_mu[r - 1]
        v = branch.unsqueeze(-1)
        score = torch.where(v == EXPLOIT, by_ucb, torch.where(v == EXPLORE, by_width, by_mean))
        seen_from = torch.where(branch == GREEDY, above, level)
        return Walk(level, branch, score, at_level(f, seen_from), at_level(sigma, seen_from))

    def place(self, level: Tensor, branch: Tensor) -> Tensor:
        return torch.where(branch == EXPLOIT, (level + 1).clamp_max(self.levels - 1), level)  # lines 14 and 26

    def commit(self, contexts: Tensor, arms: Tensor, reward: Tensor, weight: Weight) -> None:
        level, branch = self._where(contexts)
        super().commit(contexts, arms, reward, weight)
        self.ctr.scatter_add_(1, level, (branch != EXPLOIT).long())  # line 25

    def forget(self) -> None:
        super().forget()
        self.ctr.zero_()
