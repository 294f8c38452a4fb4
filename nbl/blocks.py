"""What goes into a layer: points written out, or disjoint contexts, kept as what they are made of.

A disjoint context is (0, .., x, .., 0) with x in block k of K: d + 1 numbers, k the last of them, instead of K d. A
first layer reads its block and nothing else, and the inner product of two contexts is [k = k'] x.x'. All of it equals
what the written-out vectors give.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

ALIGN = 8  # numbers that a processor works on together


def split(contexts: Tensor) -> tuple[Tensor, Tensor]:
    """(..., d + 1) -> x (..., d) and k (...)"""
    return contexts[..., :-1], contexts[..., -1].long()


def join(x: Tensor, count: int) -> Tensor:
    """One row as the contexts of K arms.    (R, d) -> (R, K, d + 1)"""
    numbers = torch.arange(count, dtype=x.dtype, device=x.device).view(1, -1, 1).expand(len(x), -1, 1)
    return torch.cat([x.unsqueeze(1).expand(-1, count, -1), numbers], -1)


def written(contexts: Tensor, count: int) -> Tensor:
    """With the zeros around them.    (..., d + 1) -> (..., K d)"""
    x, k = split(contexts)
    return (one_hot(k, count).to(x.dtype).unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)


def own(every: Tensor, k: Tensor) -> Tensor:
    """What belongs to each point's block.    (B, K, n, m), (B, n) -> (B, n, m)"""
    index = k[:, None, :, None].expand(-1, 1, -1, every.shape[-1])
    return every.gather(1, index).squeeze(1)


class Inputs:
    """The inputs of a layer, written out.

    Products run fastest along memory: where a layer is evaluated many times, its inputs are kept in both orders, and
    the rows that its gradient is made from end in zeros, up to a multiple of eight: a quarter less time at i = 21.

    Args:
        rows: (B, n, i)
        columns: the same as (B, i, n).
        many: the layer is evaluated many times.
    """

    def __init__(self, rows: Tensor, columns: Tensor, many: bool = False) -> None:
        self.rows, self.columns = rows, columns
        self.size = rows.shape[-1]
        more = -self.size % ALIGN if many else 0
        self.right = torch.constant_pad_nd(rows, (0, more)) if more else rows

    def times(self, weight: Tensor, last: bool) -> Tensor:
        """W x, a point a column; in memory a point is a row, but in the last hidden layer.    (B, m, i) -> (B, m, n)"""
        return torch.bmm(weight, self.columns) if last else torch.bmm(self.rows, weight.mT).mT

    def outer(self, signal: Tensor) -> Tensor:
        """sum_n d_n x_n^T.    (B, m, n) -> (B, m, i)"""
        found = torch.bmm(signal, self.right)
        return found if self.right is self.rows else found[..., : self.size]


class Blocks:
    """The inputs of a first layer: rows x (B, n, h d) and their blocks k (B, n).

    Its weights are (B, m, h K d): h copies of the context, as the doubled contexts of `zhou` have it, K blocks each.

    Args:
        rows: x, in all its copies.
        k: the block of each row.
        count: K.
        copies: h.
        many: sort the rows by block once, so that each product touches a row once; it looks at how many each has. Else
            rows are multiplied with every block and their own is taken: for the few arms of a round.
    """

    def __init__(self, rows: Tensor, k: Tensor, count: int, copies: int = 1, many: bool = False) -> None:
        self.rows, self.k, self.count, self.copies, self.many = rows, k, count, copies, many
        if many:
            member = one_hot(k, count)  # (B, n, K)
            self.most = int(member.sum(1).max())
            place = (member.cumsum(1) - 1).gather(-1, k.unsqueeze(-1))  # within its block
            self.slot = k.unsqueeze(-1) * self.most + place  # (B, n, 1)
            self.sorted = self.sort(rows)

    def times(self, weight: Tensor, last: bool = True) -> Tensor:
        """W_k x, a point a column, which in memory is a row.    (B, m, h K d) -> (B, m, n)"""
        parts = (
            torch.unflatten(weight, -1, (self.copies, self.count, -1)).permute(0, 3, 1, 2, 4).flatten(3)
        )  # (B, K, m, h d)
        if not self.many:
            return own(torch.matmul(self.rows.unsqueeze(1), parts.mT), self.k).mT
        out = torch.matmul(self.sorted, parts.mT).flatten(1, 2)
        return out.gather(1, self.slot.expand(-1, -1, out.shape[-1])).mT

    def outer(self, signal: Tensor) -> Tensor:
        """sum_n d_n x_n^T, each in its block.    (B, m, n) -> (B, m, h K d)"""
        parts = torch.matmul(self.sort(signal.mT).mT, self.sorted)  # (B, K, m, h d)
        return torch.unflatten(parts, -1, (self.copies, -1)).permute(0, 2, 3, 1, 4).flatten(2)

    def sort(self, values: Tensor) -> Tensor:
        """Rows of the same block side by side, zeros after the last.    (B, n, i) -> (B, K, most, i)"""
        room = values.new_zeros(len(values), self.count * self.most, values.shape[-1])
        index = self.slot.expand(-1, -1, values.shape[-1])
        return room.scatter(1, index, values).view(len(values), self.count, self.most, -1)
