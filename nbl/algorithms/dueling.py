"""What algorithms for duels share: a decision is a pair, and the pair comes from one of six rules.

           first and second arm                                  UCB                    TS
    asym   first the best mean, second the best against it       mean_l + a w_kl        N(mean_l, a^2 w_kl^2)
    osym   the best sum of two means, with a bonus               ... + a w_kl           N(..., a^2 w_kl^2)
    csym   of arms that no other leads by more than a w_kl       the largest w_kl       N(w^2, w^4 / (4 log(K t^2)))

w_kl is the width of the difference of k and l. Section 4.2 of the paper of NVLDB (nbl/algorithms/nvldb.py); asym goes
back to Verma et al. 2024, osym to Di et al. 2023, csym to Saha 2021. A pair may be the same arm twice: the algorithm is
then sure of it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nbl import pairs
from nbl.links import Duels, link
from nbl.module import BanditModule, Score
from nbl.types import NblError
from nbl.values import simple

RULES, SYMMETRIES = ("ucb", "ts"), ("asym", "osym", "csym")


class Dueling(BanditModule):
    """A bandit that plays pairs. A subclass scores with the mean of each arm and the width of each difference.

    Args:
        rule: ucb or ts.
        symmetry: asym, osym or csym.
        nu: a_t, how much to explore.
        link: of P(x beats y) = g(u(x) - u(y)): btl, thurstone or exponential.
        **problem: see the other base class.
    """

    duel = True

    def __init__(
        self, dim: int, *, rule: str = "ucb", symmetry: str = "asym", nu: float = 1.0, link: str = "btl", **problem: Any
    ) -> None:
        self._prepare(link)
        name = type(self).__name__
        if simple(problem.get("members", 1)) != 1:
            raise NblError(f"{name} has no option members; it has one network a replica.")
        super().__init__(dim, **problem)
        for key, value, known in (("rule", rule, RULES), ("symmetry", symmetry, SYMMETRIES)):
            if value not in known:
                raise NblError(f"{name}({key}={value!r}): choose one of {', '.join(known)}.")
        nu = simple(nu)
        if not (isinstance(nu, int | float) and 0 <= nu < math.inf):
            raise NblError(f"{name}(nu={nu!r}): need a number, 0 (greedy) or more.")
        self.rule, self.symmetry, self.nu, self.randomised = rule, symmetry, float(nu), rule == "ts"

    def _prepare(self, name: str) -> None:
        """The likelihood, which the base class asks for while it is built."""
        self.link = link(name)
        self.likelihood = Duels(self.link)

    def rank(self, score: Score, exploit: bool, allowed: Tensor | None) -> Tensor:
        """Scores of pairs. To exploit is to play the best mean against itself."""
        assert score.mean is not None and score.width is not None
        mean = score.mean if allowed is None else score.mean.masked_fill(~allowed, -torch.inf)
        if exploit:
            return pairs.osym(mean, torch.zeros_like(score.width))
        return self.select(mean, score.width)

    def select(self, mean: Tensor, width: Tensor) -> Tensor:
        """One of the six rules (section 4.2).    (R, q, K), (R, q, K, K) -> (R, q, K, K)"""
        noise = self.normal("thompson", tuple(width.shape[1:])) if self.rule == "ts" else None
        if self.symmetry == "csym":
            value = width if noise is None else pairs.exploring(width, self.round + 1, noise)
            return pairs.csym(pairs.candidates(mean, self.nu * width), value)
        bonus = self.nu * width if noise is None else self.nu * width * noise
        if self.symmetry == "osym":
            return pairs.osym(mean, bonus)
        return pairs.asym(mean, mean.unsqueeze(-2) + bonus)
