"""G-optimal designs: how often to measure each of K points, so that no point's prediction is uncertain.

    found = g_optimal(arms)                          # (K, d) or (R, K, d): R designs at once
    found.leverage <= found.rank * 1.01              # Kiefer-Wolfowitz: no design can be below `rank`
    pulls = round_design(found.weights, tau=500)     # whole numbers that add up to tau

    paper      here       meaning
    zeta       weights    the share of each point
    V(zeta)    V          sum_i zeta_i x_i x_i^T; leverage of x is x^T V^-1 x
    tau, N_i   tau, pulls measurements in all, and of point i
    r(a)       minimum_pulls

Ensemble Sampling for Nonlinear Contextual Bandits, arXiv:2510.10730, Algorithms 2 and 3 (Pukelsheim 2006, chapter 12;
Fiez et al. 2019). Departures: the rounding works on the support (a zero weight makes (N-1)/zeta infinite), and line 13,
a floor on every arm's pulls, is an option, because it breaks the total.

The solver is the vertex exchange of Boehning (1986): move weight from the support's least to the greatest leverage, by
the step that raises log det V most (a D-optimal design is G-optimal). It begins at the vertices of a large simplex
(Kumar and Yildirim 2005) and updates all leverages in O(K d).
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor


class GOptimal(NamedTuple):
    """A design and its certificate. The optimum has leverage = rank; this one is within the tolerance asked for."""

    weights: Tensor  # (..., K), adds up to 1
    leverage: Tensor  # (...), the greatest x^T V^-1 x over all points
    rank: Tensor  # (...), the dimension of the points' span


@torch.no_grad()
def g_optimal(arms: Tensor, tol: float = 1e-2, steps: int = 100_000) -> GOptimal:
    """The design whose greatest leverage is at most rank (1 + tol).    (..., K, d) -> weights (..., K)

    Points need not span the space (the design is on their span), may be zero, and may come twice.
    """
    if arms.ndim < 2 or 0 in arms.shape:
        raise ValueError(f"g_optimal: arms have shape {tuple(arms.shape)}; need (K, d), or (R, K, d) for R designs.")
    if not tol > 0:
        raise ValueError(f"g_optimal(tol={tol!r}): need a number above 0, for example 1e-2.")
    if not bool(arms.isfinite().all()):
        raise ValueError("g_optimal: arms hold numbers that are not finite. Clean or impute them first.")
    x, again, rank = _coordinates(arms.reshape(-1, *arms.shape[-2:]))
    R = torch.arange(len(x), device=x.device)
    w = _start(x, rank)
    low = rank.clamp_min(1).double()
    for step in range(steps):
        if step % 100 == 0:  # rounding errors of the updates do not pile up
            w, inverse, leverage = _exact(x, rank, w)
        top, k = leverage.max(-1)
        unfinished = top > low * (1 + tol)
        if not bool(unfinished.any()):
            w, inverse, leverage = _exact(x, rank, w)
            if bool((leverage.amax(-1) <= low * (1 + tol)).all()):
                break
        least, j = leverage.where(w > 0, torch.inf).min(-1)
        up, down = x[R, k], x[R, j]
        across = (torch.bmm(inverse, up.unsqueeze(-1)).squeeze(-1) * down).sum(-1)
        curve = top * least - across.square()  # log det rises by log(1 + a (top - least) - a^2 curve)
        a = torch.where(curve > 1e-12 * top * least, (top - least) / (2 * curve), torch.inf).minimum(w[R, j])
        a = a * unfinished
        w[R, k] += a
        w[R, j] = (w[R, j] - a).where(a < w[R, j], 0.0)
        for point, amount in ((up, a), (down, -a)):  # Sherman-Morrison
            b = torch.bmm(inverse, point.unsqueeze(-1))  # (R, d, 1)
            c = amount / (1 + amount * (b.squeeze(-1) * point).sum(-1))
            inverse.baddbmm_(b * -c[:, None, None], b.mT)
            leverage.addcmul_(torch.bmm(x, b).squeeze(-1).square_(), c[:, None], value=-1)
    else:
        warnings.warn(f"g_optimal: tol={tol} not reached in {steps} steps; see `leverage`.", stacklevel=2)
        w, inverse, leverage = _exact(x, rank, w)
    leverage = _exact(again, rank, w)[2]  # the certificate is of the points themselves
    shape = arms.shape[:-2]
    return GOptimal(w.view(*shape, -1), leverage.amax(-1).view(shape), rank.view(shape))


def round_design(weights: Tensor, tau: int, min_pulls: int | None = None) -> Tensor:
    """Whole numbers close to tau * weights that add up to exactly tau.    (..., K) -> (..., K)

    Args:
        weights: a design; adds up to 1.
        tau: pulls in all, at most 10^12. Fewer than the support has points: the heaviest tau points are kept.
        min_pulls: a floor for every point (line 13 of Algorithm 3; see `minimum_pulls`): the total may then exceed tau.
    """
    if isinstance(tau, bool) or not isinstance(tau, int) or not 1 <= tau <= 10**12:  # beyond, shares are not exact
        raise ValueError(f"round_design(tau={tau!r}): need a whole number of pulls, from 1 to 10**12.")
    if min_pulls is not None and (isinstance(min_pulls, bool) or not isinstance(min_pulls, int) or min_pulls < 0):
        raise ValueError(f"round_design(min_pulls={min_pulls!r}): need a whole number of pulls, 0 or more, or None.")
    if weights.ndim < 1 or 0 in weights.shape:
        raise ValueError(
            f"round_design: weights have shape {tuple(weights.shape)}; need (K,), or (R, K), K at least 1."
        )
    zeta = weights.double().reshape(-1, weights.shape[-1])
    if not bool((zeta >= 0).all() & (zeta.sum(-1) > 0).all() & zeta.sum(-1).isfinite().all()):
        raise ValueError("round_design: weights must be finite and 0 or more, with at least one above 0.")
    kept = zeta.sort(dim=-1, descending=True, stable=True).indices[:, :tau]
    zeta = torch.zeros_like(zeta).scatter(-1, kept, zeta.gather(-1, kept))
    zeta = zeta / zeta.sum(-1, keepdim=True)
    support = zeta > 0
    size = support.sum(-1, keepdim=True)
    pulls = torch.where(support, ((tau - size / 2) * zeta).ceil(), 0.0)  # line 2
    while bool((pulls.sum(-1) != tau).any()):  # lines 3 to 12, a replica each
        ratio = (pulls - 1) / zeta
        few, many = pulls.sum(-1) < tau, pulls.sum(-1) > tau
        more = ratio.where(support, torch.inf).argmin(-1, keepdim=True)
        less = ratio.where(support, -torch.inf).argmax(-1, keepdim=True)
        pulls.scatter_add_(-1, more, few.double().unsqueeze(-1))
        pulls.scatter_add_(-1, less, -many.double().unsqueeze(-1))
    if min_pulls is not None:
        pulls = pulls.clamp_min(min_pulls)  # line 13
    return pulls.long().view(weights.shape)


def minimum_pulls(dim: int, arms: int, a: float = 0.5) -> int:
    """r(a)/K, rounded up: the floor of line 13 in Algorithm 3, with r(a) = (d(d+1)/2 + 1)/a."""
    if not 0 < a < 1:
        raise ValueError(f"minimum_pulls(a={a!r}): need a number between 0 and 1.")
    return math.ceil((dim * (dim + 1) / 2 + 1) / a / arms)


def _coordinates(arms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The points in orthonormal coordinates of their span, zeros after it: leverages do not depend on coordinates.

    Nor on the unit of a column, so each has length 1 first. A direction is outside the span when it is as small as what
    rounding leaves of one: in a column of length 1 that is eps of the precision the points came in, however many there
    are. 16 bits can tell so little that 1e-4 is the limit: what is above is taken as it is.

    Returns the coordinates twice, as found and as computed anew from the points, and the rank.
    """
    x = arms.double()
    x = x / _or_one(x.abs().amax(-2, keepdim=True))  # so that no square overflows
    x = x / _or_one(x.norm(dim=-2, keepdim=True))
    U, S, Vh = torch.linalg.svd(x, full_matrices=False)
    cut = torch.finfo(torch.float64).eps * max(arms.shape[-2:])
    if arms.is_floating_point():
        cut = max(cut, min(4 * torch.finfo(arms.dtype).eps * math.sqrt(arms.shape[-1]), 1e-4))
    inside = S[:, :1] * cut < S
    again = torch.bmm(x, Vh.mT) / S.where(inside, 1.0).unsqueeze(-2)
    return U * inside.unsqueeze(-2), again * inside.unsqueeze(-2), inside.sum(-1)


def _or_one(size: Tensor) -> Tensor:
    return size.where(size > 0, 1.0)


def _start(x: Tensor, rank: Tensor) -> Tensor:
    """Equal weights on `rank` points that span, each the farthest from the span of those before.    -> (R, K)"""
    rest, w = x.clone(), torch.zeros(x.shape[:2], dtype=x.dtype, device=x.device)
    for n in range(int(rank.max())):
        k = rest.square().sum(-1).argmax(-1)
        far = rest[torch.arange(len(x), device=x.device), k]
        far = far / far.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        rest.baddbmm_(torch.bmm(rest, far.unsqueeze(-1)), far.unsqueeze(-2), alpha=-1)
        rest.scatter_(1, k.view(-1, 1, 1).expand(-1, 1, x.shape[2]), 0.0)
        w.scatter_add_(1, k.unsqueeze(-1), (n < rank).to(w).unsqueeze(-1))
    w = torch.where((rank > 0).unsqueeze(-1), w, 1.0)  # every point is zero: any design will do
    return w / w.sum(-1, keepdim=True)


def _exact(x: Tensor, rank: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights that add up to 1, V^-1 and all leverages, from scratch."""
    w = w / w.sum(-1, keepdim=True)
    outside = torch.arange(x.shape[-1], device=x.device) >= rank.unsqueeze(-1)
    V = torch.bmm((x * w.unsqueeze(-1)).mT, x) + torch.diag_embed(outside.double())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(V))
    return w, inverse, (torch.bmm(x, inverse) * x).sum(-1)
