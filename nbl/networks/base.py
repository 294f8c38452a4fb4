"""What training and confidence ask of a network, and f(x) - f(y) of one as a network on pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nbl.gradient import Gradient
from nbl.history import one_by_one
from nbl.rng import Streams
from nbl.types import NblError


class Layer(NamedTuple):
    """Views of a layer's parameters, (B, out, in) and (B, out, 1). Where inputs end in a 1, the matrix has the bias."""

    weight: Tensor
    bias: Tensor | None

    def put(self, weight: Tensor, signal: Tensor, factor: Tensor | None = None) -> None:
        """Write a gradient: that of the weights, and what came back to the outputs, (B, out, n).

        `factor` (B, out, 1), where not yet in them, is multiplied with both.
        """
        self.weight.copy_(weight if factor is None else weight.mul_(factor))
        if self.bias is not None:
            total = signal.sum(-1, keepdim=True)
            self.bias.copy_(total if factor is None else total.mul_(factor))


Weights = list[Layer]


class Network(nn.Module, ABC):
    """R x M networks of one shape.

    Attributes:
        theta, theta0: parameters now and at the start, (R * M, p).
        scale: features are gradients times this (1 / sqrt(m), or 1 where the paper has no m).
        centered: whether f(x; theta_0) is subtracted.
        slope: |features|^2 at the start, on unit contexts and at infinite width: L for ReLUs.
        closed: whether `evaluate` and `pullback` are in closed form, with nothing for autograd to do.
    """

    theta: nn.Parameter
    theta0: Tensor
    width: int
    depth: int
    scale: float = 1.0
    centered: bool = False
    closed: bool = False
    copies = 1  # evaluations an observation takes
    layout: Mapping[str, str] = {"theta": "B", "theta0": "B"}

    @property
    def slope(self) -> float:
        return float(self.depth)

    def __init__(self, replicas: int, members: int, size: int) -> None:
        super().__init__()
        self.replicas, self.members, self.size = replicas, members, size
        self.theta = nn.Parameter(torch.zeros(replicas * members, size), requires_grad=False)
        self.register_buffer("theta0", torch.zeros(replicas * members, size))

    @abstractmethod
    def unpack(self, theta: Tensor) -> Weights:
        """Views of flat parameters, in the shapes that `evaluate` uses; they follow theta.    (B, p)"""

    @abstractmethod
    def evaluate(self, weights: Weights, x: Tensor) -> tuple[Tensor, Any]:
        """Outputs, and what `pullback` needs.    (B, p) unpacked, (B, n, d) -> (B, n)"""

    @abstractmethod
    def pullback(self, weights: Weights, kept: Any, signal: Tensor, into: Weights) -> None:
        """Gradient in theta of sum_n signal_n f(x_n), written into unpacked parameters.    (B, p) unpacked, (B, n)

        What was kept may be overwritten: it serves once.
        """

    @abstractmethod
    def features(self, x: Tensor, theta: Tensor | None = None, last_layer: bool = False) -> Gradient:
        """Scaled gradients in theta at each point, of the first member.    (R, n, d) -> (R, n, p)"""

    @property
    def head(self) -> int:
        """How many of the parameters, the last ones, are the output layer's."""
        raise NblError(
            "this needs one of the library's own networks (net.kind=...): the last layer of another is unknown."
        )

    @abstractmethod
    def draw(self, streams: Streams, phase: int) -> Tensor:
        """Initial parameters, one set a replica.    -> (R, p)"""

    def prepare(self, x: Tensor, many: bool = False) -> Any:
        """What is fed to the first layer; `many` times in training.    (B, n, d) -> (B, n, d')"""
        return x

    def initialise(self, streams: Streams, phase: int) -> None:
        """Draw theta_0 anew; members share it."""
        self.theta0.copy_(self.draw(streams, phase).repeat_interleave(self.members, 0))
        self.theta.copy_(self.theta0)

    def forward(self, x: Tensor) -> Tensor:
        """f(x; theta).    (R, n, d) -> (R, n), or (R, M, n) in an ensemble"""
        x = self.prepare(self.spread(x))
        out = self.evaluate(self.unpack(self.theta), x)[0]
        if self.centered:
            out = out - self.evaluate(self.unpack(self.theta0), x)[0]
        return out if self.members == 1 else out.view(self.replicas, self.members, -1)

    def spread(self, x: Tensor) -> Tensor:
        """One copy a member.    (R, ...) -> (R * M, ...)"""
        return x if self.members == 1 else x.repeat_interleave(self.members, 0)


class Pairs:
    """f(x) - f(y) as a network on pairs side by side: what a duel is trained on. The weights are the network's own."""

    copies = 2

    def __init__(self, net: Network) -> None:
        self.net, self.theta, self.theta0 = net, net.theta, net.theta0
        self.replicas, self.members = net.replicas, net.members
        self.width, self.depth, self.centered, self.closed = net.width, net.depth, net.centered, net.closed
        self.scale, self.slope, self.unpack = net.scale, net.slope, net.unpack

    def prepare(self, x: Tensor, many: bool = False) -> Any:
        """(B, n, 2 d) -> (B, 2 n, d')"""
        return self.net.prepare(one_by_one(x), many)

    def evaluate(self, weights: Weights, x: Tensor) -> tuple[Tensor, Any]:
        """(B, p) unpacked, (B, 2 n, d') -> (B, n)"""
        out, kept = self.net.evaluate(weights, x)
        return out[:, ::2] - out[:, 1::2], kept

    def pullback(self, weights: Weights, kept: Any, signal: Tensor, into: Weights) -> None:
        """(B, p) unpacked, (B, n)"""
        self.net.pullback(weights, kept, torch.stack([signal, -signal], -1).flatten(1), into)

    def __call__(self, x: Tensor) -> Tensor:
        """(R, n, 2 d) -> (R, n)"""
        out: Tensor = self.net(one_by_one(x))
        return out[..., ::2] - out[..., 1::2]
