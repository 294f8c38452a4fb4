"""Confidence matrices for batches and for levels: `Held` stands still within a batch, `Levels` divides its points.

Both are the Dual form (nbl/design/dual.py), exact, in one t x t factor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from nbl.design import Dual, exact
from nbl.gradient import Gradient


class Held(Dual):
    """A Dual whose widths are those of the last `release`, while log det U goes on: for algorithms that act in batches.

    The rows of L^-1 up to a round are the factor of that round's matrix, so that holding it needs no copy.
    """

    def __init__(self, replicas: int, size: int, lam: float) -> None:
        super().__init__(replicas, size, lam)
        self.register_buffer("seen", torch.zeros(replicas, dtype=torch.int64))  # rows that widths know of

    seen: Tensor

    def release(self, who: Tensor | None = None) -> None:
        """From now on widths know all that was added, in all replicas or in those of a mask (R,)."""
        everything = torch.full_like(self.seen, self.n)
        self.seen.copy_(everything if who is None else torch.where(who, everything, self.seen))

    def squared(self, g: Gradient) -> Tensor:
        squared = g.square()
        if self.n:
            known = torch.arange(self.n, device=self.seen.device) < self.seen.unsqueeze(1)
            squared = squared - (self.project(g).square() * known.unsqueeze(-1)).sum(1)
        return squared / self.lam

    def reset(self) -> None:
        super().reset()
        self.seen.zero_()


class Levels(Dual):
    """Many matrices, one a level, U_l = lam I + sum over the points of level l; each point is of one level only.

    In order of time the kernel of points of different levels counts as 0: that matrix is block diagonal but for the
    order of its rows, and so is L^-1. One factor of t x t therefore holds all levels, and the squares of one
    projection, summed level by level, give all widths: the cost of one Dual, whatever the number of levels.
    """

    def __init__(self, replicas: int, size: int, lam: float, levels: int) -> None:
        super().__init__(replicas, size, lam)
        self.levels, self.growing["labels"] = levels, (1,)
        self.register_buffer("gain", torch.zeros(replicas, levels, dtype=torch.float64))
        self.register_buffer("labels", torch.zeros(replicas, 0, dtype=torch.int64))  # the level of each point

    labels: Tensor

    def squared(self, g: Gradient) -> Tensor:
        """g^T U_l^-1 g of each level.    (R, n, p) -> (R, levels, n)"""
        squared = g.square().unsqueeze(1).expand(-1, self.levels, -1)
        if self.n:
            member = one_hot(self.labels[:, : self.n], self.levels + 1)[..., :-1].double()  # (R, played, levels)
            squared = squared - torch.bmm(member.mT, self.project(g).square())
        return squared / self.lam

    def put(self, g: Gradient, weight: Tensor, level: Tensor) -> None:
        """U_l <- U_l + weight g g^T for n points, each in its level.    (R, n, p), (R, n), (R, n)

        Level `levels` is none of them: a point that is kept in no matrix, with weight 0.
        """
        with torch.no_grad(), exact(self.gain):
            g = g.double()
            for i in range(g.points):
                own = level[:, i : i + 1]
                corner = self._append(g.point(i), weight[:, i].double(), self.labels[:, : self.n] == own)
                self.labels[:, self.n - 1 : self.n] = own
                self.gain.scatter_add_(
                    1, own.clamp_max(self.levels - 1), (corner.log() - math.log(self.lam)).unsqueeze(1)
                )

    def add(self, g: Gradient, weight: Tensor) -> None:
        raise TypeError("Levels.put says which level a point is of.")
