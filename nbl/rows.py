"""The data of a generalised linear model, rows x_1 ... x_n written out or in blocks: what Newton's method asks of it.

Disjoint rows (`nbl.blocks`) touch a block each, so that sum_i c_i x_i x_i^T is a d x d matrix a block: n d^2 + K d^3
products instead of n (K d)^2 + (K d)^3, with the same result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nbl.blocks import Blocks, split, written


def products(contexts: Tensor, theta: Tensor, count: int | None = None) -> Tensor:
    """x.theta, of x written out or in `count` blocks.    (R, q, K, d), (R, q, M, d) or one for all q -> (R, q, M, K)"""
    if count is None:
        return torch.einsum("rqkd,rqmd->rqmk", contexts, theta.expand(-1, contexts.shape[1], -1, -1))
    x, k = split(contexts)
    parts = torch.unflatten(theta, -1, (count, -1)).expand(-1, contexts.shape[1], -1, -1, -1)
    every = torch.einsum("rqkd,rqmbd->rqmkb", x, parts)
    return every.gather(-1, k[:, :, None, :, None].expand(*every.shape[:-1], 1)).squeeze(-1)


def solve(matrix: Tensor, vector: Tensor) -> Tensor:
    """`torch.linalg.solve` without a look at whether it worked, which would wait for the device."""
    found: Tensor = torch.linalg.solve_ex(matrix, vector).result
    return found


class Rows:
    """Rows written out.

    Args:
        x: (R, n, d).
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def times(self, theta: Tensor) -> Tensor:
        """x_i.theta.    (R, M, d) -> (R, M, n)"""
        return theta @ self.x.mT

    def sums(self, signal: Tensor) -> Tensor:
        """sum_i s_i x_i.    (R, M, n) -> (R, M, d)"""
        return signal @ self.x

    def matrix(self, curvature: Tensor, lam: float) -> Tensor:
        """lam I + sum_i c_i x_i x_i^T.    (R, M, n) -> (R, M, d, d)"""
        eye = torch.eye(self.x.shape[-1], dtype=self.x.dtype, device=self.x.device)
        return lam * eye + (curvature.unsqueeze(-1) * self.x.unsqueeze(1)).mT @ self.x.unsqueeze(1)

    def solve(self, curvature: Tensor, lam: float, vector: Tensor) -> Tensor:
        """The inverse of `matrix` times a vector.    (R, M, n), (R, M, d) -> (R, M, d)"""
        return solve(self.matrix(curvature, lam), vector)


class DisjointRows(Rows):
    """Rows in blocks, as (x, k).

    Args:
        x: (R, n, d + 1).
        count: K.
    """

    def __init__(self, x: Tensor, count: int) -> None:
        self.blocks = Blocks(*split(x), count, many=True)

    def times(self, theta: Tensor) -> Tensor:
        return self.blocks.times(theta)

    def sums(self, signal: Tensor) -> Tensor:
        return self.blocks.outer(signal)

    def matrix(self, curvature: Tensor, lam: float) -> Tensor:
        """A matrix a block.    (R, M, n) -> (R, M, K, d, d)"""
        x = self.blocks.sorted.unsqueeze(1)  # (R, 1, K, most, d)
        c = self.blocks.sort(curvature.mT).permute(0, 3, 1, 2).unsqueeze(-1)  # (R, M, K, most, 1)
        return lam * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) + (c * x).mT @ x

    def solve(self, curvature: Tensor, lam: float, vector: Tensor) -> Tensor:
        parts = torch.unflatten(vector, -1, (self.blocks.count, -1))  # (R, M, K, d)
        return solve(self.matrix(curvature, lam), parts).flatten(2)


def transform(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Rows times a matrix, or a matrix for each block.    (R, n, d), (R, d, d) or (R, K, d/K, d/K) -> (R, n, d)"""
    if matrix.ndim == 3:
        return torch.bmm(vectors, matrix)
    parts = torch.unflatten(vectors, -1, (matrix.shape[1], -1)).transpose(1, 2)  # (R, K, n, d)
    return torch.matmul(parts, matrix).transpose(1, 2).flatten(2)


def rows(x: Tensor, count: int | None) -> Rows:
    return Rows(x) if count is None else DisjointRows(x, count)


def full(x: Tensor, count: int | None) -> Tensor:
    """Rows as they are, or with the zeros around them."""
    return x if count is None else written(x, count)
