"""Likelihoods: how far an output is from a target. Training needs only the derivative in the output."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


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
