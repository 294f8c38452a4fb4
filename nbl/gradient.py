"""Gradients of a network, kept as what they are made of.

The gradient of a layer is an outer product, (signal that came back) x (input that went in). Keeping the two
vectors instead of their product makes inner products cheap and exact:

    <g(x), g(x')> = sum over layers l of  (a_l(x) . a_l(x')) (d_l(x) . d_l(x'))          O(d + L m) instead of O(p)

A difference of two gradients, as in a duel, is a sum of two outer products a layer; by bilinearity its inner products
are sums of those of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from nbl.blocks import split
from nbl.types import NblError

Pair = tuple[Tensor, Tensor | None]


class Gradient:
    """Gradients at n points, (R, n, p), as what each layer's is made of.

    Args:
        layers: pairs of inputs a (R, n, i) and signals d (R, n, o); a layer's gradient is the o x i matrix d a^T.
            A vector written out, such as the gradient of a layer with one output, is the pair (vector, None). Sums of s
            outer products have an axis of length s before the last one: (R, n, s, i) and (R, n, s, o).
        block: k (R, n) where contexts are disjoint: the first layer's gradient lies in block k of `blocks`, zeros in
            the others, and so is orthogonal to that of a point in another block. Not for sums.
        blocks: K.
    """

    def __init__(self, layers: Sequence[Pair], block: Tensor | None = None, blocks: int | None = None) -> None:
        self.layers, self.block, self.blocks = tuple(layers), block, blocks if block is not None else None
        self.value: Tensor | None = None  # f(x) at the same points and weights, where it came along    (R, n)

    @classmethod
    def explicit(cls, vectors: Tensor, block: Tensor | None = None, blocks: int | None = None) -> Gradient:
        """From vectors written out, or from what is in their block.    (R, n, p)"""
        return cls([(vectors, None)], block, blocks)

    @classmethod
    def of_rows(cls, rows: Tensor, blocks: int | None) -> Gradient:
        """Of linear models: contexts themselves, written out or, in blocks, as (x, k).    (R, n, d)"""
        return cls.explicit(rows) if blocks is None else cls.explicit(*split(rows), blocks)

    @property
    def size(self) -> int:
        """p, the length of a gradient."""
        sizes = [a.shape[-1] * (1 if d is None else d.shape[-1]) for a, d in self.layers]
        return sum(sizes) + sizes[0] * ((self.blocks or 1) - 1)

    @property
    def points(self) -> int:
        """n, how many gradients there are for each replica."""
        return self.layers[0][0].shape[1]

    def gram(self, other: Gradient) -> Tensor:
        """Inner products.    (R, n, p) x (R, n', p) -> (R, n, n')"""
        ((a, d), *others), ((b, e), *theirs) = self._flat().layers, other._flat().layers
        found = _product(a, d, b, e)
        if self.block is not None and other.block is not None:
            found *= self.block.unsqueeze(-1) == other.block.unsqueeze(-2)
        for (a, d), (b, e) in zip(others, theirs, strict=True):
            found = found.baddbmm_(a, b.mT) if d is e is None else found.add_(_product(a, d, b, e))
        if self.terms * other.terms == 1:
            return found
        return found.view(-1, self.points, self.terms, other.points, other.terms).sum((2, 4))

    def square(self) -> Tensor:
        """Squared norms.    -> (R, n)"""
        if self.terms > 1:
            parts = [a @ a.mT if d is None else (a @ a.mT) * (d @ d.mT) for a, d in self.layers]
            return reduce(torch.add, [part.sum((-1, -2)) for part in parts])
        return reduce(torch.add, [length2(a) if d is None else length2(a) * length2(d) for a, d in self.layers])

    def dense(self) -> Tensor:
        """Written out.    -> (R, n, p)"""
        if self.terms > 1:
            return torch.cat([a.sum(2) if d is None else (d.mT @ a).flatten(2) for a, d in self.layers], -1)
        parts = [a if d is None else (d.unsqueeze(-1) * a.unsqueeze(-2)).flatten(2) for a, d in self.layers]
        if self.block is not None:
            assert self.blocks is not None
            member = one_hot(self.block, self.blocks).to(parts[0].dtype)
            parts[0] = (member.unsqueeze(-1) * parts[0].unsqueeze(-2)).flatten(2)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def differences(self) -> Gradient:
        """First minus second of each two points.    (R, 2 n, p) -> (R, n, p)"""
        halves = self.map(lambda x: x.reshape(len(x), -1, 2, x.shape[-1]))
        return Gradient([(_minus(a), None) if d is None else (a, _minus(d)) for a, d in halves.layers])

    @property
    def terms(self) -> int:
        """s, outer products a layer: 1, or 2 in a difference."""
        a = self.layers[0][0]
        return a.shape[2] if a.ndim == 4 else 1

    def _flat(self) -> Gradient:
        """Every outer product a point of its own.    (R, n s, p)"""
        return self if self.layers[0][0].ndim == 3 else self.map(lambda x: x.flatten(1, 2))

    def map(self, f: Callable[[Tensor], Tensor]) -> Gradient:
        """The same function on every factor: a change of type."""
        return Gradient([(f(a), None if d is None else f(d)) for a, d in self.layers], self.block, self.blocks)

    def scaled(self, factor: float) -> Gradient:
        layers: list[Pair] = [(a * factor, None) if d is None else (a, d * factor) for a, d in self.layers]
        return Gradient(layers, self.block, self.blocks)

    def double(self) -> Gradient:
        return self.map(Tensor.double)

    def point(self, index: int) -> Gradient:
        """The gradient at one point, as a set of one."""
        if self.points == 1:
            return self
        one = self.map(lambda x: x[:, index : index + 1])
        one.block = None if self.block is None else self.block[:, index : index + 1]
        return one


def length2(x: Tensor) -> Tensor:
    """Squared lengths.    (..., i) -> (...)"""
    found: Tensor = torch.linalg.vecdot(x, x)
    return found


def _product(a: Tensor, d: Tensor | None, b: Tensor, e: Tensor | None) -> Tensor:
    """(a . a') (d . d') of a layer.    (R, n, i), (R, n, o), (R, n', i), (R, n', o) -> (R, n, n')"""
    if (d is None) != (e is None):
        raise NblError("gradients of two makes: this checkpoint is of an older nbl, whose runs cannot be resumed.")
    found = torch.bmm(a, b.mT)
    return found if d is None or e is None else found.mul_(torch.bmm(d, e.mT))


def _minus(x: Tensor) -> Tensor:
    """(R, n, 2, i), the second negated"""
    return torch.stack([x[:, :, 0], -x[:, :, 1]], 2)
