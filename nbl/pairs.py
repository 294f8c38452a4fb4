"""Selection rules of duels: estimates in, scores of all K x K pairs out; the best pair is played. Pure functions.

`mean` is the utility of each arm, (..., K), -inf for a forbidden one; `width` that of each difference, (..., K, K), 0
on the diagonal. Entry [k, l] of the result is the pair with k first and l second, -inf where it is not considered.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nbl import explore


def widths(covariance: Tensor) -> Tensor:
    """||g_k - g_l||_{U^-1} from the entries g_k^T U^-1 g_l.    (..., K, K) -> (..., K, K)"""
    own = covariance.diagonal(dim1=-2, dim2=-1)
    return (own.unsqueeze(-1) + own.unsqueeze(-2) - 2.0 * covariance).clamp_min(0.0).sqrt()


def asym(mean: Tensor, second: Tensor) -> Tensor:
    """First the best arm, then its best competitor.    (..., K), (..., K, K) -> (..., K, K)

    `second[k, l]` is what l is worth after k: mean_l + a width_kl, or a draw around mean_l. Where several arms are
    best, each may be first, on equal terms.
    """
    best = second.amax(-1, keepdim=True)
    level = second - best + best.amax(-2, keepdim=True)
    return level.masked_fill(~explore.tied(mean).unsqueeze(-1), -torch.inf)


def osym(mean: Tensor, bonus: Tensor) -> Tensor:
    """The pair with the best sum of utilities and its bonus, a width_kl or a draw.    (..., K), (..., K, K)"""
    return mean.unsqueeze(-1) + mean.unsqueeze(-2) + bonus


def candidates(mean: Tensor, bonus: Tensor) -> Tensor:
    """Arms that may still be best: no other is ahead by more than the bonus.    (..., K), (..., K, K) -> (..., K)

    With >= where the paper prints >, so that the best mean is always in it (an arm is not ahead of itself).
    """
    ahead = mean.unsqueeze(-2) - mean.unsqueeze(-1)  # of l over k; not a number where both are forbidden
    return (bonus >= ahead).all(-1)


def csym(chosen: Tensor, value: Tensor) -> Tensor:
    """The pair of candidates with the largest value, a width or a draw around it.    (..., K) bool, (..., K, K)"""
    return value.masked_fill(~(chosen.unsqueeze(-1) & chosen.unsqueeze(-2)), -torch.inf)


def exploring(width: Tensor, t: int, noise: Tensor) -> Tensor:
    """Draws from N(w^2, w^4 / (4 log(K t^2))), for TS-CSYM.    (..., K, K) -> (..., K, K)"""
    spread = 2.0 * math.sqrt(max(math.log(width.shape[-1] * t * t), math.log(2.0)))
    return width.square() * (1.0 + noise / spread)
