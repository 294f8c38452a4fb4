"""Selection rules: estimates in, scores out. Pure functions; noise is an argument."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

TIE = 1e-6  # scores closer than this, relative to their scale, are a tie


def ucb(mean: Tensor, width: Tensor, beta: float | Tensor) -> Tensor:
    """Optimism: mean + beta * width.    (R, K), (R, K) -> (R, K)"""
    return mean + beta * width


def thompson(mean: Tensor, width: Tensor, nu: float | Tensor, noise: Tensor) -> Tensor:
    """One draw an arm from N(mean, (nu * width)^2); `noise` is standard normal.    (R, K) -> (R, K)"""
    return mean + nu * width * noise


def tied(scores: Tensor) -> Tensor:
    """Which arms are as good as the best, up to rounding; -inf marks a forbidden one.    (..., K) -> (..., K)"""
    top = scores.amax(-1, keepdim=True)
    return scores >= torch.minimum(top * (1.0 - TIE), top * (1.0 + TIE))


def share(best: Tensor, dtype: torch.dtype) -> Tensor:
    """The chance of each arm when one that is `tied` for the best is played, each as often.    (..., K) -> (..., K)"""
    return best / best.sum(-1, keepdim=True, dtype=dtype)


def pick(best: Tensor, u: Tensor) -> Tensor:
    """One of those `tied` for the best, by `u`, uniform on (0, 1).    (..., K), (..., K) -> (...)"""
    return (best * u).argmax(-1)


def in_turn(begun: int, q: int, K: int) -> Tensor:
    """A warm-up's scores: after `begun` rounds of q questions each, the arms in turn.    -> (q, K)"""
    return one_hot((begun * q + torch.arange(q)) % K, K).float()


def ensemble(f: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a member by `u`, uniform on (0, 1): its scores, each arm's chance over the draw, and which member it is.

    (R, q, M, K), (R, q) -> (R, q, K), (R, q, K), (R, q)
    """
    R, q, M, K = f.shape
    member = (u * M).long()
    chosen = f.gather(2, member[..., None, None].expand(R, q, 1, K)).squeeze(2)
    return chosen, share(tied(f), f.dtype).mean(2), member


def perturbation(scatter: Tensor, noise: Tensor) -> Tensor:
    """sum z_i x_i for fresh z_i ~ N(0, 1), in law: scatter^(1/2) noise, scatter = sum x x^T.    (R, d, d), (R, d)"""
    values, vectors = torch.linalg.eigh(scatter)
    return torch.einsum("rde,re->rd", vectors, values.clamp_min(0.0).sqrt() * noise.double())
