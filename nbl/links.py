"""Links of duels: P(x beats y) = g(u(x) - u(y)), with g the distribution function of symmetric noise.

    name          noise of a comparison   g(z)
    btl           logistic                1 / (1 + e^-z)                       Bradley, Terry; Luce
    thurstone     normal                  Phi(z)                               Thurstone; Mosteller
    exponential   Laplace                 1 - e^-z / 2 for z > 0, else e^z / 2

log g is concave for all three, so the likelihood of a linear utility is convex. `Duels` is the loss of the inner
training, on z = f(x) - f(y); `minimise` finds the best linear utility by Newton's method.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from nbl.types import NblError


class Link(Protocol):
    """g, by its logarithm; all element by element."""

    def log(self, z: Tensor) -> Tensor:
        """log g(z), the log-likelihood of a win; log g(-z) is that of a loss."""

    def derivative(self, z: Tensor) -> Tensor:
        """(log g)'(z), above 0"""

    def curvature(self, z: Tensor) -> Tensor:
        """-(log g)''(z), 0 or more"""

    def variance(self, z: Tensor) -> Tensor:
        """g(z) (1 - g(z)), the variance of the outcome"""

    def chance(self, z: Tensor) -> Tensor:
        """g(z)"""


class BTL:
    """Logistic noise: Bradley-Terry-Luce."""

    def log(self, z: Tensor) -> Tensor:
        return logsigmoid(z)

    def derivative(self, z: Tensor) -> Tensor:
        return (-z).sigmoid()

    def curvature(self, z: Tensor) -> Tensor:
        return self.variance(z)

    def variance(self, z: Tensor) -> Tensor:
        return z.sigmoid() * (-z).sigmoid()

    def chance(self, z: Tensor) -> Tensor:
        return z.sigmoid()


class Thurstone:
    """Normal noise: Thurstone-Mosteller."""

    def log(self, z: Tensor) -> Tensor:
        found: Tensor = torch.special.log_ndtr(z)
        return found

    def derivative(self, z: Tensor) -> Tensor:
        return (-0.5 * z.square() - 0.5 * math.log(2.0 * math.pi) - self.log(z)).exp()

    def curvature(self, z: Tensor) -> Tensor:
        slope = self.derivative(z)
        return (slope * (slope + z)).clamp(0.0, 1.0)  # far to the left the sum cancels; the limits are 1 and 0

    def variance(self, z: Tensor) -> Tensor:
        found: Tensor = torch.special.ndtr(z) * torch.special.ndtr(-z)
        return found

    def chance(self, z: Tensor) -> Tensor:
        found: Tensor = torch.special.ndtr(z)
        return found


class Exponential:
    """Laplace noise: the difference of two exponential ones."""

    def log(self, z: Tensor) -> Tensor:
        return torch.where(z > 0, (-0.5 * (-z.clamp_min(0.0)).exp()).log1p(), z - math.log(2.0))

    def derivative(self, z: Tensor) -> Tensor:
        tail = (-z.clamp_min(0.0)).exp()
        return tail / (2.0 - tail)  # 1 for z <= 0

    def curvature(self, z: Tensor) -> Tensor:
        tail = (-z.clamp_min(0.0)).exp()
        return torch.where(z > 0, 2.0 * tail / (2.0 - tail).square(), 0.0)

    def variance(self, z: Tensor) -> Tensor:
        tail = 0.5 * (-z.abs()).exp()
        return tail * (1.0 - tail)

    def chance(self, z: Tensor) -> Tensor:
        tail = 0.5 * (-z.abs()).exp()
        return torch.where(z > 0, 1.0 - tail, tail)


LINKS: dict[str, type[Link]] = {"btl": BTL, "thurstone": Thurstone, "exponential": Exponential}


def link(name: str) -> Link:
    """A link by name."""
    if name not in LINKS:
        raise NblError(f"link={name!r}: choose one of {', '.join(LINKS)}.")
    return LINKS[name]()


class Duels:
    """-log g((-1)^(1-o) z): the loss of a duel's outcome o, for z = f(x) - f(y). A draw is o = 1/2."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def value(self, output: Tensor, target: Tensor) -> Tensor:
        return -target * self.link.log(output) - (1.0 - target) * self.link.log(-output)

    def derivative(self, output: Tensor, target: Tensor) -> Tensor:
        return (1.0 - target) * self.link.derivative(-output) - target * self.link.derivative(output)

    def curvature(self, output: Tensor, target: Tensor) -> Tensor:
        """Its second derivative in the output."""
        return target * self.link.curvature(output) + (1.0 - target) * self.link.curvature(-output)


def minimise(
    loss: Duels,
    x: Tensor,
    won: Tensor,
    weight: Tensor,
    lam: Tensor | float,
    centre: Tensor,
    theta: Tensor,
    steps: int = 50,
) -> Tensor:
    """argmin of sum w loss(x.theta, won) + lam/2 |theta - centre|^2, to rounding, from a first guess; float64.

    Newton's method. Where a whole step does not go down, the best of its halves, quarters, ... is taken. A replica that
    has arrived stands still, so it does what it would do alone.

    (R, n, d), (R, n), (R, n), (R, d), (R, d) -> (R, d)
    """
    x, won, weight, centre, theta = (part.double() for part in (x, won, weight, centre, theta))
    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    ridge = torch.as_tensor(lam, dtype=x.dtype, device=x.device).expand(len(x))[:, None]
    halves = 0.5 ** torch.arange(1, 16, dtype=x.dtype, device=x.device)

    def total(z: Tensor, away: Tensor) -> Tensor:
        """The sum for several outputs and distances from the centre.    (R, n, S), (R, d, S) -> (R, S)"""
        losses = loss.value(z, won.unsqueeze(-1)) * weight.unsqueeze(-1)
        return losses.sum(1) + 0.5 * ridge * away.square().sum(1)

    for _ in range(steps):
        z = torch.bmm(x, theta.unsqueeze(-1)).squeeze(-1)  # (R, n)
        terms = x * (weight * loss.derivative(z, won)).unsqueeze(-1)
        gradient = terms.sum(1) + ridge * (theta - centre)
        scale = terms.abs().sum(1) + ridge * (theta.abs() + centre.abs())
        moving = ~(gradient.abs() <= 1e-12 * scale).all(-1)  # true of a NaN
        if not bool(moving.any()):
            break
        curved = x * (weight * loss.curvature(z, won)).unsqueeze(-1)
        step = torch.linalg.solve_ex(torch.bmm(curved.mT, x) + ridge.unsqueeze(-1) * eye, gradient).result
        along, z, away = torch.bmm(x, step.unsqueeze(-1)), z.unsqueeze(-1), (theta - centre).unsqueeze(-1)
        before, after = total(z, away), total(z - along, away - step.unsqueeze(-1))
        down = (after <= before + 1e-12 * before.abs()).squeeze(-1) | ~moving
        size = torch.ones_like(down, dtype=x.dtype)
        if not bool(down.all()):
            shorter = total(z - along * halves, away - step.unsqueeze(-1) * halves)
            size = torch.where(down, size, halves[shorter.argmin(-1)])
        theta = torch.where(moving.unsqueeze(-1), theta - size.unsqueeze(-1) * step, theta)
    if not bool(theta.isfinite().all()):
        raise NblError("the estimate of a duel's utility is not finite; scale the contexts, or raise `lam`.")
    return theta
