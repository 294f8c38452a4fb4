"""The neural tangent kernel in closed form, kernel ridge regression with it, and how large a problem is to it.

    GCB  Salgia, Vakili, Zhao. Provably and Practically Efficient Neural Contextual Bandits. 2022, arXiv:2206.00099
    TS   Zhang, Zhou, Li, Gu. Neural Thompson Sampling. ICLR 2021, arXiv:2010.00827

    k, kernel matrix     `kernel`                  GCB (15)-(17) for the network `ntk`; TS Definition 3.1 for `zhou`
    sigma-bar_s          `dual`                    GCB (19): c_s E[sigma_s(u) sigma_s(v)]
    f_NTK, sigma-hat     `ridge`                   GCB (5) and (7)
    log det(I + k/lam)   `information_gain`        GCB (3) for given points; its supremum over points is Gamma_k
    d-tilde              `effective_dimension`     four papers, four definitions
    beta_t               `radius`                  GCB Theorem 2

Everything here is float64 and takes leading batch axes. Depth L counts weight matrices, as in `nbl.networks`.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from nbl.types import NblError

KINDS = ("ntk", "zhou")
DIMENSIONS = ("gcb", "ts", "log", "es")


@cache
def _polynomials(s: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """P_s and Q_s, lowest power first: pi (2s-1)!! sigma-bar_s = P_s(rho) (pi - arccos rho) + Q_s(rho) sqrt(1 - rho^2).

    Cho and Saul (2009) write the arc-cosine kernel as sin^(2s+1) times the s-th derivative in rho of
    (pi - theta)/sin(theta), cos(theta) = rho. One derivative more is
        P_{s+1} = (1 - rho^2) P_s' + (2s+1) rho P_s,    Q_{s+1} = P_s + (1 - rho^2) Q_s' + 2s rho Q_s.
    """
    P, Q = [1.0], [0.0]
    for n in range(s):
        P, Q = _step(P, 2 * n + 1), _sum(P, _step(Q, 2 * n))
    return tuple(P), tuple(Q)


def _step(p: list[float], times: int) -> list[float]:
    """(1 - rho^2) p' + times rho p."""
    slope = [k * c for k, c in enumerate(p)][1:]
    return _sum(_sum(slope, [0.0, 0.0, *(-c for c in slope)]), [0.0, *(times * c for c in p)])


def _sum(p: list[float], q: list[float]) -> list[float]:
    n = max(len(p), len(q))
    return [a + b for a, b in zip(p + [0.0] * (n - len(p)), q + [0.0] * (n - len(q)), strict=True)]


def dual(rho: Tensor, s: int) -> Tensor:
    """sigma-bar_s(rho) = c_s E[max(0, u)^s max(0, v)^s], (u, v) standard normal with correlation rho.

    From 0 at rho = -1 to 1 at rho = 1.
    """
    P, Q = _polynomials(s)
    rho = rho.clamp(-1.0, 1.0)
    return (_at(P, rho) * (math.pi - rho.arccos()) + _at(Q, rho) * (1.0 - rho * rho).sqrt()) / (
        math.pi * math.prod(range(1, 2 * s, 2))
    )


def _at(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Horner's rule."""
    total = torch.zeros_like(x)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def slope(s: int) -> float:
    """s^2 / (2s - 1), by which sigma-bar_s' exceeds sigma-bar_{s-1} (GCB Fact 3)."""
    return s * s / (2 * s - 1)


def kernel(x: Tensor, y: Tensor | None = None, *, kind: str = "ntk", depth: int = 2, power: int = 1) -> Tensor:
    """The neural tangent kernel between two sets of points of any norm.    (..., n, d), (..., n', d) -> (..., n, n')

    Args:
        x: points.
        y: others; the same where not given.
        kind: `ntk`, the limit of g.g' of that network (GCB (17)); `zhou`, the matrix H that NeuralUCB and NeuralTS are
            analysed with (TS Definition 3.1), the limit of g.g'/m of the `zhou` network over the weights that are not
            zero at the start. Over all of its weights, off-diagonal blocks included, the limit is `ntk` with power 1.
        depth: L, weight matrices; 2 is one hidden layer.
        power: s of the activation max(0, u)^s; `zhou` has 1.
    """
    check(kind, depth, power)
    y = x if y is None else y
    x, y = x.double(), y.double()
    cross = x @ y.mT  # Sigma^(0)
    left, right = x.square().sum(-1, keepdim=True), y.square().sum(-1).unsqueeze(-2)  # Sigma(x, x), Sigma(y, y)
    tangent = cross  # the sum (17), layer by layer
    for _ in range(depth - 1):
        scale = (left * right).clamp_min(0.0)
        rho = cross / scale.sqrt().clamp_min(1e-300)
        cross = scale ** (power / 2) * dual(rho, power)  # (15), by homogeneity
        grown = scale ** ((power - 1) / 2) * slope(power) * dual(rho, power - 1)  # (16), by Fact 3
        tangent = tangent * grown + cross  # (17)
        left, right = left**power, right**power
    return tangent if kind == "ntk" else 0.5 * (tangent + cross)


def check(kind: str, depth: int, power: int) -> None:
    """What `kernel` takes."""
    if kind not in KINDS:
        raise NblError(f"kernel kind={kind!r}: choose one of {', '.join(KINDS)}.")
    for name, value, least in (("depth", depth, 2), ("power", power, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise NblError(f"kernel {name}={value!r}: need a whole number, at least {least}.")
    if kind == "zhou" and power != 1:
        raise NblError(f"kernel power={power}: the `zhou` network has ReLUs, power=1; kind=ntk takes any.")


def ridge(K: Tensor, y: Tensor, cross: Tensor, prior: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """Kernel ridge regression: f_NTK (5) and the surrogate standard deviation (7) at new points.

    Args:
        K: kernel of the data, (..., t, t).
        y: targets, (..., t).
        cross: kernel of new points and data, (..., n, t).
        prior: k(x, x) of the new points, (..., n).
        lam: the ridge.

    Returns:
        mean, width: (..., n) each; width^2 = (k(x, x) - k_t(x)^T (lam I + K)^-1 k_t(x)) / lam = g^T V^-1 g.
    """
    _positive(lam)
    eye = torch.eye(K.shape[-1], dtype=torch.float64, device=K.device)
    factor = torch.linalg.cholesky(lam * eye + K.double())
    z = torch.linalg.solve_triangular(factor, cross.double().mT, upper=False)  # (..., t, n)
    c = torch.linalg.solve_triangular(factor, y.double().unsqueeze(-1), upper=False)
    return (z * c).sum(-2), ((prior.double() - z.square().sum(-2)).clamp_min(0.0) / lam).sqrt()


def information_gain(K: Tensor, lam: float = 1.0) -> Tensor:
    """log det(I + K / lam) (GCB (3) at the points of K).    (..., n, n) -> (...)"""
    _positive(lam)
    eye = torch.eye(K.shape[-1], dtype=torch.float64, device=K.device)
    gain: Tensor = torch.linalg.slogdet(eye + K.double() / lam).logabsdet
    return gain


def effective_dimension(
    K: Tensor, lam: float = 1.0, kind: str = "gcb", *, horizon: int | None = None, variance: float = 0.25
) -> Tensor:
    """How many directions of the kernel matter. Four papers, four definitions.    (..., n, n) -> (...)

        gcb   tr(K (K + lam I)^-1)                              GCB (4), Valko et al. 2013
        ts    log det(I + K/lam) / log(1 + n/lam)               TS Definition 3.2; n = T K, all arms of all rounds
        log   log det(I + variance K/lam)                       LOG Definition 4.3; variance R = 1/4
        es    log det(I + T K/lam) / log(1 + T n/lam)           ES (5.2); n = K arms, horizon T

    Args:
        K: kernel matrix of n points.
        lam: the ridge.
        kind: one of the four.
        horizon: T, for `es`.
        variance: R, for `log`.
    """
    n = K.shape[-1]
    if kind == "gcb":
        _positive(lam)
        values: Tensor = torch.linalg.eigvalsh(K.double()).clamp_min(0.0)
        return (values / (values + lam)).sum(-1)
    if kind == "ts":
        return information_gain(K, lam) / math.log1p(n / lam)
    if kind == "log":
        return information_gain(variance * K, lam)
    if kind == "es":
        if horizon is None or horizon < 1:
            raise NblError(f"effective_dimension(kind='es', horizon={horizon!r}): say how many rounds, at least 1.")
        return information_gain(horizon * K, lam) / math.log1p(horizon * n / lam)
    raise NblError(f"effective_dimension(kind={kind!r}): choose one of {', '.join(DIMENSIONS)}.")


def radius(norm: float, noise: float, delta: float) -> float:
    """beta = S + 2 nu sqrt(log(1/delta)): Theorem 2's radius for a network wide and trained enough.

    The theorem's further terms vanish with the width m and the steps J; its constants are not given. With |h| <= S in
    the kernel's space, nu-sub-Gaussian noise, points chosen independently of the noise and one x fixed beforehand,
    |h(x) - f(x)| <= beta sigma-hat(x) has probability at least 1 - delta for lam <= 1: the bias is at most
    sqrt(lam) S sigma-hat, and the noise's part is nu sigma-hat-sub-Gaussian (2 in place of sqrt(2) allows for both
    sides while delta <= 1/2). For lam > 1 the printed S is too small. For points that were chosen looking at
    rewards, as a bandit's are, nothing is promised: hence the levels of NeuralGCB.

    Args:
        norm: S.
        noise: nu.
        delta: the chance of a miss.
    """
    numbers = all(isinstance(value, int | float) for value in (norm, noise, delta))
    if not (numbers and norm >= 0 and noise >= 0 and 0 < delta < 1):
        raise NblError(f"radius(norm={norm}, noise={noise}, delta={delta}): need norms of 0 or more and 0 < delta < 1.")
    return norm + 2.0 * noise * math.sqrt(math.log(1.0 / delta))


def _positive(lam: float) -> None:
    if not (lam > 0 and math.isfinite(lam)):
        raise NblError(f"lam={lam!r}: the ridge must be a positive number, for example 1.0.")
