"""Radii and tail bounds of logistic bandits, as functions of their inputs.

Bae, Lee. Neural Logistic Bandits. arXiv:2505.02069v2: equations (1) to (4), Theorem 3.1 and the two bounds that
section 3 compares it with. Numbers or tensors in, the same out; d is a log det (the effective dimension so far).

    paper        here                    meaning
    lambda_0     lambda_0                ridge at the start
    lambda_t     lambda_t                ridge after t rounds, eq. (3)
    iota_t       iota_t                  eq. (2)
    nu_t         nu_t                    radius, eq. (1) with C_6, eq. (4) with C_7
    d~           effective_dimension     log det(I + scale sum g g^T), Definition 4.3 with scale = R / lambda_0

At t = 0 the logarithms take t = 1. The paper says that lambda_0 <= lambda_1; as printed the second term of (3) is
lambda_0 / 8 there, so lambda_1 may be smaller.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

R = 0.25  # the largest variance of a coin: mu' <= R

Number = float | Tensor


def lambda_0(S: float, delta: float, L: int = 2, C1: float = 1.0) -> float:
    """8 sqrt(2) C_1 sqrt(L) log(4 / delta) / S"""
    return 8 * math.sqrt(2 * L) * C1 * math.log(4 / delta) / S


def lambda_t(d: Number, t: int, lam0: float, S: float, delta: float, L: int = 2, C1: float = 1.0) -> Number:
    """Eq. (3); d = log det(sum g g^T / (4 m lambda_0) + I)."""
    log = _log(t, delta)
    return (64 * d * log + 16 * C1**2 * L / lam0 * log**2) / S**2


def iota_t(d: Number, t: int, lam0: float, delta: float, L: int = 2, C1: float = 1.0) -> Number:
    """Eq. (2), with the same d."""
    log = _log(t, delta)
    return 16 * (d * log) ** 0.5 + 8 * C1 * math.sqrt(L / lam0) * log


def nu_t(iota: Number, S: float, L: int = 2, C: float = 1.0) -> Number:
    """Eq. (1) with C = C_6, eq. (4) with C = C_7."""
    return C * (1 + math.sqrt(L) * S + L * S**2) * iota + 1


def effective_dimension(g: Tensor, scale: float) -> Tensor:
    """log det(I + scale sum_i g_i g_i^T), through the smaller of the two kernels.    (..., n, p) -> (...)"""
    g = g.double()
    gram = g @ g.mT if g.shape[-2] <= g.shape[-1] else g.mT @ g
    eye = torch.eye(gram.shape[-1], dtype=g.dtype, device=g.device)
    found: Tensor = torch.linalg.slogdet(eye + scale * gram).logabsdet
    return found


# Bounds on ||s_t|| in H_t^-1, s_t = sum x_i eta_i, H_t = sum mu'(x_i.theta) x_i x_i^T + lam I ---------------------


def theorem_3_1(gain: Number, t: int, lam: float, delta: float, M: float = 1.0, N: float = 1.0) -> Number:
    """Theorem 3.1, by Freedman's inequality; gain = log det H_t - log det lam I."""
    log = _log(t, delta)
    return 8 * (gain * log) ** 0.5 + 4 * M * N / math.sqrt(lam) * log


def faury(gain: Number, dim: int, lam: float, delta: float, M: float = 1.0, N: float = 1.0) -> Number:
    """Faury et al. 2020, as section 3 prints it; gain as above. The dimension itself is in it."""
    size = math.sqrt(lam) / (2 * M * N)
    return (gain - math.log(delta) + dim * math.log(2)) / size + size


def verma(gain: Number, kappa: float, delta: float, M: float = 1.0) -> Number:
    """Verma et al. 2025, as section 3 prints it; gain = log det(sum x x^T / (kappa lam) + I)."""
    return M * (kappa * (gain + 2 * math.log(1 / delta))) ** 0.5


def _log(t: int, delta: float) -> float:
    return math.log(4 * max(t, 1) ** 2 / delta)


class Martingale(NamedTuple):
    """Simulated ||s_t|| in H_t^-1 beside the three bounds, (runs, T) each, for t = 1 .. T."""

    norm: Tensor
    theorem_3_1: Tensor
    faury: Tensor
    verma: Tensor


def simulate(
    runs: int, rounds: int, dim: int, used: int, lam: float, S: float = 3.0, delta: float = 0.05, seed: int = 0
) -> Martingale:
    """Coins with means mu(x.theta), |theta| = S, x uniform on the unit sphere of the first `used` of `dim` directions.

    With `used` below `dim` the data have fewer dimensions than their space: what an effective dimension sees.
    kappa = 1 / mu'(S), the largest that can happen.
    """
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(runs, used, generator=generator, dtype=torch.float64)
    theta = S * theta / theta.norm(dim=-1, keepdim=True)
    kappa = float(2 + 2 * math.cosh(S))  # 1 / (mu (1 - mu)) at S
    eye = torch.eye(used, dtype=torch.float64)
    H, V, s = lam * eye.repeat(runs, 1, 1), kappa * lam * eye.repeat(runs, 1, 1), torch.zeros_like(theta)
    found: list[tuple[Tensor, ...]] = []
    for t in range(1, rounds + 1):
        x = torch.randn(runs, used, generator=generator, dtype=torch.float64)
        x = x / x.norm(dim=-1, keepdim=True)
        mean = (x * theta).sum(-1).sigmoid()
        eta = (torch.rand(runs, generator=generator, dtype=torch.float64) < mean).double() - mean
        outer = x[:, :, None] * x[:, None]
        H, V, s = H + (mean * (1 - mean))[:, None, None] * outer, V + outer, s + x * eta[:, None]
        norm = (s * torch.linalg.solve(H, s)).sum(-1).sqrt()
        gain, plain = (torch.linalg.slogdet(U / ridge).logabsdet for U, ridge in ((H, lam), (V, kappa * lam)))
        bounds = (theorem_3_1(gain, t, lam, delta), faury(gain, dim, lam, delta), verma(plain, kappa, delta))
        found.append((norm, *map(torch.as_tensor, bounds)))
    return Martingale(*(torch.stack(part, 1) for part in zip(*found, strict=True)))
