"""Likelihoods: how far an output is from a target. Training needs only the derivative in the output.

The exponential families are -log p(y | z) = b(z) - y z, up to what does not depend on z; b' is the mean and b'' the
variance. They accept any real target: ensembles add noise to rewards, whatever these are.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

from nbl.types import NblError


class Loss(Protocol):
    def value(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of each observation."""

    def derivative(self, output: Tensor, target: Tensor) -> Tensor:
        """Its derivative in the output."""


class Squared:
    """(f - y)^2 / 2: Gaussian noise."""

    def value(self, output: Tensor, target: Tensor) -> Tensor:
        return 0.5 * (output - target).square()

    def derivative(self, output: Tensor, target: Tensor) -> Tensor:
        return output - target


class Family(Protocol):
    """An exponential family by its log-partition function b."""

    def partition(self, z: Tensor) -> Tensor:
        """b(z)"""

    def mean(self, z: Tensor) -> Tensor:
        """mu(z) = b'(z)"""

    def slope(self, z: Tensor) -> Tensor:
        """mu'(z) = b''(z), the variance"""


class Gaussian:
    """b(z) = z^2 / 2, mu(z) = z."""

    def partition(self, z: Tensor) -> Tensor:
        return 0.5 * z.square()

    def mean(self, z: Tensor) -> Tensor:
        return z

    def slope(self, z: Tensor) -> Tensor:
        return torch.ones_like(z)


class Logistic:
    """b(z) = log(1 + e^z), mu(z) = 1 / (1 + e^-z)."""

    def partition(self, z: Tensor) -> Tensor:
        return softplus(z)

    def mean(self, z: Tensor) -> Tensor:
        return z.sigmoid()

    def slope(self, z: Tensor) -> Tensor:
        mu = z.sigmoid()
        return mu * (1.0 - mu)


class Poisson:
    """b(z) = e^z, mu(z) = e^z."""

    def partition(self, z: Tensor) -> Tensor:
        return z.exp()

    def mean(self, z: Tensor) -> Tensor:
        return z.exp()

    def slope(self, z: Tensor) -> Tensor:
        return z.exp()


class Likelihood:
    """b(z) - y z of a family: for Logistic, the negative log-likelihood of a coin."""

    def __init__(self, family: Family) -> None:
        self.family = family

    def value(self, output: Tensor, target: Tensor) -> Tensor:
        return self.family.partition(output) - target * output

    def derivative(self, output: Tensor, target: Tensor) -> Tensor:
        return self.family.mean(output) - target


FAMILIES: dict[str, type[Family]] = {"gaussian": Gaussian, "logistic": Logistic, "poisson": Poisson}


def family(name: str) -> Family:
    """An exponential family by name."""
    if name not in FAMILIES:
        raise NblError(f"link={name!r}: choose one of {', '.join(FAMILIES)}.")
    return FAMILIES[name]()
