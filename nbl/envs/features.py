"""From columns to feature vectors: encode, scale, turn (PCA). Unit rows are made when a row is played.

    encode    letters become   ordinal   their place in the sorted list of values: 0, 1, 2, ...
                               onehot    one column a value
                               random    a number each, uniform on [-1, 1], the same for every seed
    scale     columns become   none      what they are
                               minmax    [-1, 1]
                               standard  mean 0, standard deviation 1
              rows become      rows      [-1, 1], each row by its own smallest and largest number
    pca=n     the n directions in which the scaled rows vary most

A constant column scales to 0. Fitted on all rows (`fit=all`), this looks at the future: the usual choice in papers.
`Running` (`fit=online`) knows only the rows that a seed has met so far, the present one included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from nbl.envs.columns import Array, Letters
from nbl.rng import Streams
from nbl.types import NblError

ENCODE = ("ordinal", "onehot", "random")
SCALE = ("none", "minmax", "standard", "rows")
WIDEST = 10_000  # one-hot columns
_CHUNK = 1 << 22  # numbers handled in float64 at once


def matrix(columns: Mapping[str, Array | Letters], encode: str, scale: str, pool: int, later: bool = False) -> Tensor:
    """All columns side by side, scaled, in float32; where they are scaled `later`, as they are.    -> (N, d)"""
    scale = "none" if later and scale != "rows" else scale
    letters = {name: len(column.values) for name, column in columns.items() if isinstance(column, Letters)}
    if encode == "onehot" and sum(letters.values()) > WIDEST:
        worst = max(letters, key=lambda name: letters[name])
        raise NblError(
            f"encode=onehot makes {sum(letters.values())} columns, {letters[worst]} of them from {worst!r}; at most "
            f"{WIDEST} are made. Leave it out, env.drop=[{worst}], or take encode=ordinal."
        )
    blocks = list(_blocks(columns, encode, pool))
    wide = sum(block.shape[1] for block in blocks)
    out, at = np.empty((len(blocks[0]), wide), dtype=np.float64 if later else np.float32), 0
    for block in blocks:
        for start in range(0, block.shape[1], step := max(1, _CHUNK // len(block))):
            part = block[:, start : start + step].astype(np.float64)
            if scale == "minmax":
                low, high = part.min(0), part.max(0)
                part = (part - (low + high) / 2) / _positive((high - low) / 2)
            elif scale == "standard":
                part = (part - part.mean(0)) / _positive(part.std(0))
            out[:, at : at + part.shape[1]] = part
            at += part.shape[1]
    if scale == "rows":
        low, high = out.min(1, keepdims=True), out.max(1, keepdims=True)
        out = (out - (low + high) / 2) / _positive((high - low) / 2)
    return torch.from_numpy(out)


def _blocks(columns: Mapping[str, Array | Letters], encode: str, pool: int) -> Iterator[Array]:
    """A column, or what stands for it.    -> (N, k)"""
    for name, column in columns.items():
        if not isinstance(column, Letters):
            yield _pixels(name, column, pool) if column.ndim > 2 else column.reshape(len(column), -1)
        elif encode == "onehot":
            yield np.eye(len(column.values), dtype=np.uint8)[column.codes]
        elif encode == "random":
            codes = Streams((0,), "table").uniform(f"codes/{name}", 0, (len(column.values),))[0] * 2 - 1
            yield codes.numpy()[column.codes][:, None]
        else:
            yield column.codes[:, None]


def _pixels(name: str, images: Array, pool: int) -> Array:
    """Means over pool x pool squares, flattened; bytes become [0, 1].    (N, h, w, ...) -> (N, k)"""
    n, h, w = images.shape[:3]
    if h % pool or w % pool:
        raise NblError(f"pool={pool}: the images of {name!r} are {h} x {w}, which it does not divide.")
    scale = np.float32(1 / 255 if images.dtype == np.uint8 else 1)
    if pool == 1:
        return images.reshape(n, -1) * scale
    split = images.reshape(n, h // pool, pool, w // pool, pool, -1)
    pooled: Array = split.mean((2, 4), dtype=np.float32) * scale
    return pooled.reshape(n, -1)


def _positive(x: Array) -> Array:
    return np.where(x > 0, x, 1.0)


def principal(rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The mean, and the n directions of largest variance, the largest coordinate of each positive.

    (N, d) -> (d,), (d, n) in float64
    """
    mean, step = rows.mean(0, dtype=torch.float64), max(1, _CHUNK // rows.shape[1])
    scatter = rows.new_zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
    for part in torch.split(rows, step):
        centred = part.double() - mean
        scatter += centred.mT @ centred
    basis = torch.linalg.eigh(scatter)[1][:, -n:].flip(1)
    largest = basis.gather(0, basis.abs().argmax(0, keepdim=True))
    return mean, basis * largest.sign()


def project(rows: Tensor, n: int) -> Tensor:
    """PCA of a whole table.    (N, d) -> (N, n) float32"""
    mean, basis = principal(rows, n)
    parts = [((part.double() - mean) @ basis).float() for part in torch.split(rows, max(1, _CHUNK // rows.shape[1]))]
    return torch.cat(parts)


class Running:
    """Scaling and PCA by what a seed has met: rows 1 .. t of its order when round t is played.

    Minimum, maximum, mean and variance are brought up to date in every round. PCA is fitted anew at rounds 2, 4, 8, ...
    once there are more rows than directions (until then it takes the first n columns), and each new basis is turned
    within its span to be as near as it can to the last (Procrustes): what was learned keeps its meaning. All this is a
    function of the order and t: asked for an earlier round, it begins again.
    """

    def __init__(self, scale: str, pca: int | None) -> None:
        self.scale, self.pca, self.n = scale, pca, 0

    def __call__(self, table: Tensor, order: Tensor, t: int, rows: Tensor) -> Tensor:
        """What round t knows, applied to rows.    (N, d), (R, N), (R, d) -> (R, d')"""
        if t < self.n or self.n == 0 or self.mean.device != rows.device:
            self._begin(rows)
        while self.n < t:
            self._meet(table[order[:, self.n].long()].double(), table, order)
        shift, spread = self._fitted()
        rows = (rows - shift) / spread
        return rows if self.pca is None else torch.einsum("rd,rdn->rn", rows - self.centre, self.basis)

    def _begin(self, like: Tensor) -> None:
        self.n = 0
        self.low, self.high = torch.full_like(like, torch.inf), torch.full_like(like, -torch.inf)
        self.mean, self.scatter, self.centre = (torch.zeros_like(like) for _ in range(3))
        if self.pca is not None:
            eye = torch.eye(like.shape[1], self.pca, dtype=like.dtype, device=like.device)
            self.basis = eye.repeat(like.shape[0], 1, 1)

    def _meet(self, x: Tensor, table: Tensor, order: Tensor) -> None:
        """One more row a replica (Welford).    (R, d)"""
        self.n += 1
        self.low, self.high = torch.minimum(self.low, x), torch.maximum(self.high, x)
        off = x - self.mean
        self.mean = self.mean + off / self.n
        self.scatter = self.scatter + off * (x - self.mean)
        if self.pca is not None and self.n > self.pca and self.n & (self.n - 1) == 0:
            self._turn(table, order)

    def _fitted(self) -> tuple[Tensor, Tensor]:
        if self.scale == "minmax":
            shift, spread = (self.low + self.high) / 2, (self.high - self.low) / 2
        elif self.scale == "standard":
            shift, spread = self.mean, (self.scatter / self.n).sqrt()
        else:
            shift, spread = torch.zeros_like(self.mean), torch.ones_like(self.mean)
        return shift, spread.where(spread > 0, 1.0)

    def _turn(self, table: Tensor, order: Tensor) -> None:
        assert self.pca is not None
        shift, spread = self._fitted()
        for r in range(order.shape[0]):
            seen = (table[order[r, : self.n].long()].double() - shift[r]) / spread[r]
            self.centre[r], basis = principal(seen, self.pca)
            u, _, vh = torch.linalg.svd(basis.mT @ self.basis[r])
            self.basis[r] = basis @ (u @ vh)
