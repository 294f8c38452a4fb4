"""Gradients of a network, kept as what they are made of.

The gradient of a layer is an outer product, (signal that came back) x (input that went in). Keeping the two
vectors instead of their product makes inner products cheap and exact:

    <g(x), g(x')> = sum over layers l of  (a_l(x) . a_l(x')) (d_l(x) . d_l(x'))          O(d + L m) instead of O(p)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class Gradient:
    """Gradients at n points, (R, n, p), as one pair (a, d) a layer.

    Args:
        layers: pairs of inputs a (R, n, i) and signals d (R, n, o); a layer's gradient is the o x i matrix d a^T.
            A vector that is not an outer product is the pair (vector, ones).
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.layers = tuple(layers)

    @classmethod
    def explicit(cls, vectors: Tensor) -> Gradient:
        """From vectors written out.    (R, n, p)"""
        return cls([(vectors, vectors.new_ones(1, 1, 1).expand(*vectors.shape[:2], 1))])

    @property
    def size(self) -> int:
        """p, the length of a gradient."""
        return sum(a.shape[-1] * d.shape[-1] for a, d in self.layers)

    @property
    def points(self) -> int:
        """n, how many gradients there are for each replica."""
        return self.layers[0][0].shape[1]

    def gram(self, other: Gradient) -> Tensor:
        """Inner products.    (R, n, p) x (R, n', p) -> (R, n, n')"""
        return torch.stack(
            [(a @ b.mT) * (d @ e.mT) for (a, d), (b, e) in zip(self.layers, other.layers, strict=True)]
        ).sum(0)

    def square(self) -> Tensor:
        """Squared norms.    -> (R, n)"""
        return torch.stack([a.square().sum(-1) * d.square().sum(-1) for a, d in self.layers]).sum(0)

    def dense(self) -> Tensor:
        """Written out.    -> (R, n, p)"""
        return torch.cat([(d.unsqueeze(-1) * a.unsqueeze(-2)).flatten(2) for a, d in self.layers], -1)

    def map(self, f: Callable[[Tensor], Tensor]) -> Gradient:
        """The same function on every factor: a slice, a change of type."""
        return Gradient([(f(a), f(d)) for a, d in self.layers])

    def scaled(self, factor: float) -> Gradient:
        return Gradient([(a, d * factor) for a, d in self.layers])

    def double(self) -> Gradient:
        return self.map(Tensor.double)

    def point(self, index: int) -> Gradient:
        """The gradient at one point, as a set of one."""
        return self.map(lambda x: x[:, index : index + 1])
