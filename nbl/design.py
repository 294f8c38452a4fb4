"""Confidence matrices: U = lam I + sum_i w_i g_i g_i^T, one a replica, and the width sqrt(g^T U^-1 g).

Five forms behind one interface; an algorithm cannot tell which one it was given. Two more are in nbl/levels.py.

    Dual      exact, through the t x t kernel of what was played; never forms a p-vector
    Full      exact, p x p, Sherman-Morrison
    Auto      Dual while it is the cheaper, then Full
    Diagonal  the papers' approximation: only U's diagonal
    Blockwise exact, for disjoint vectors: a Full for each block

With D = diag(w_i), K the kernel of the played gradients and k that of a new one (push-through identity):

    g^T U^-1 g = (g.g - k^T D^1/2 (lam I + D^1/2 K D^1/2)^-1 D^1/2 k) / lam
    log det U  = p log lam + log det(I + D^1/2 K D^1/2 / lam)

The subtraction cancels, so everything here is float64, whatever the network's precision, and autocast is off.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from nbl.blocks import own
from nbl.gradient import Gradient, length2
from nbl.state import State
from nbl.types import NblError
from nbl.values import finite

KINDS = ("auto", "dual", "full", "diagonal")
BAND = 256  # rows of the Dual factor multiplied at a time: what is above the diagonal is left out band by band
MOST = 12_000  # the largest p for which a p x p matrix is considered (1.2 GB a replica)


class DesignError(NblError):
    """A width that is not a number."""


class Design(State, ABC):
    """U = lam I + sum w g g^T. State lives in buffers: checkpoints and devices come for free."""

    counters: tuple[str, ...] = ()

    def __init__(self, replicas: int, size: int, lam: float) -> None:
        super().__init__()
        if not (lam > 0 and math.isfinite(lam)):
            raise NblError(f"lam={lam!r}: the ridge of a confidence matrix must be a positive number, for example 1.0.")
        self.replicas, self.size, self.lam = replicas, size, float(lam)
        self.register_buffer("gain", torch.zeros(replicas, dtype=torch.float64))  # log det U - log det lam I

    gain: Tensor

    @abstractmethod
    def squared(self, g: Gradient) -> Tensor:
        """g^T U^-1 g.    (R, n, p) -> (R, n)"""

    @abstractmethod
    def between(self, g: Gradient, K: int) -> Tensor:
        """g_k^T U^-1 g_l for each K points in turn.    (R, q K, p) -> (R, q, K, K)"""

    @abstractmethod
    def add(self, g: Gradient, weight: Tensor) -> None:
        """U <- U + weight g g^T for one gradient a replica.    (R, 1, p), (R,)"""

    @abstractmethod
    def reset(self) -> None:
        """Back to U = lam I."""

    def scaled(self, factor: Tensor) -> dict[str, Tensor]:
        """The buffers of lam I + factor (U - lam I), computed afresh from what is in U.    (R,)"""
        raise NblError(f"{type(self).__name__} cannot change its ridge; take design=dual, full or diagonal.")

    @torch.no_grad()
    def rescale(self, factor: Tensor, who: Tensor) -> None:
        """U <- lam I + factor (U - lam I) in the replicas `who`: what a ridge that moves asks for.    (R,), (R,) bool

        lam_t I + sum w g g^T is (lam_t / lam) (lam I + sum w (lam / lam_t) g g^T). Costs O(p) for Diagonal, a new
        Cholesky factor, O(n^3), for Dual, and an inverse, O(p^3), for Full.
        """
        with exact(self.gain):
            for name, new in self.scaled(torch.where(who, factor, 1.0).double()).items():
                old: Tensor = getattr(self, name)
                part = old[tuple(slice(0, s) for s in new.shape)]
                part.copy_(torch.where(who.view(-1, *[1] * (new.ndim - 1)), new, part))

    @torch.no_grad()
    def width(self, g: Gradient) -> Tensor:
        """sqrt(g^T U^-1 g).    (R, n, p) -> (R, n)"""
        with exact(self.gain):
            with torch.inference_mode():
                squared = self._finite(self.squared(g.double())).clamp_min_(0.0)
            return squared.sqrt()  # outside: an ordinary tensor

    @torch.no_grad()
    def covariance(self, g: Gradient, K: int) -> Tensor:
        """g_k^T U^-1 g_l among each K points in turn: what widths of differences are made of.    -> (R, q, K, K)"""
        with exact(self.gain):
            return self._finite(self.between(g.double(), K))

    def _finite(self, squared: Tensor) -> Tensor:
        if squared.device.type == "cpu" and not finite(squared):
            bad = int((~squared.isfinite()).sum())
            raise DesignError(
                f"width is not finite for {bad} of {squared.numel()} arms; lam is {self.lam:g}. Usual causes: the "
                "network diverged (lower `fit.lr`) or lam is too small (raise `lam`)."
            )
        return squared

    @torch.no_grad()
    def update(self, g: Gradient, weight: Tensor | None = None) -> None:
        """U <- U + sum weight g g^T, one gradient after another.    (R, n, p), (R, n)"""
        with exact(self.gain):
            g, each = g.double(), None if weight is None else weight.double()
            for i in range(g.points):
                self.add(g.point(i), torch.ones_like(self.gain) if each is None else each[:, i])

    def logdet(self) -> Tensor:
        """log det U - log det lam I.    -> (R,)"""
        return self.gain

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow a move to a device, never a change of precision."""
        moved: Self = super()._apply(lambda t: t.to(fn(t).device), recurse)  # type: ignore[no-untyped-call]
        return moved


def exact(like: Tensor) -> AbstractContextManager[object]:
    """No mixed precision."""
    device = like.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _groups(x: Tensor, K: int) -> Tensor:
    """K rows in turn.    (R, q K, p) -> (R, q, K, p)"""
    return x.reshape(len(x), -1, K, x.shape[-1])


def root(matrix: Tensor, lam: float) -> Tensor:
    """The Cholesky factor of a covariance.    (R, d, d) -> (R, d, d)"""
    found: tuple[Tensor, Tensor] = torch.linalg.cholesky_ex(matrix)
    factor, failed = found
    if failed.device.type == "cpu" and bool(failed.any()):
        raise DesignError(f"the covariance has lost its positive eigenvalues to rounding; raise `lam` (now {lam:g}).")
    return factor


class Diagonal(Design):
    """Only the diagonal of U."""

    def __init__(self, replicas: int, size: int, lam: float) -> None:
        super().__init__(replicas, size, lam)
        self.register_buffer("diagonal", torch.full((replicas, size), self.lam, dtype=torch.float64))

    diagonal: Tensor

    def squared(self, g: Gradient) -> Tensor:
        """sum_ij d_i^2 a_j^2 / U_ij, layer by layer, without writing g out."""
        if g.terms > 1:
            return (g.dense().square() / self.diagonal.unsqueeze(1)).sum(-1)
        total, at = torch.zeros((), dtype=torch.float64, device=self.gain.device), 0
        for layer, (a, d) in enumerate(g.layers):
            if d is None:
                d = a.new_ones(1, 1, 1).expand(*a.shape[:2], 1)
            o, i, blocks = d.shape[-1], a.shape[-1], g.blocks if g.block is not None and not layer else None
            size = o * i * (blocks or 1)
            inverse = self.diagonal[:, at : at + size].reciprocal()
            if blocks is not None and g.block is not None:
                part = own(torch.matmul(d.square().unsqueeze(1), inverse.view(-1, blocks, o, i)), g.block)
            else:
                part = torch.bmm(d.square(), inverse.view(-1, o, i))
            total, at = total + (part * a.square()).sum(-1), at + size
        return total

    def between(self, g: Gradient, K: int) -> Tensor:
        v = _groups(g.dense(), K)
        return (v / self.diagonal[:, None, None]) @ v.mT

    def add(self, g: Gradient, weight: Tensor) -> None:
        new = self.diagonal + weight[:, None] * g.dense().squeeze(1).square()
        self.gain += (new / self.diagonal).log().sum(-1)
        self.diagonal.copy_(new)

    def scaled(self, factor: Tensor) -> dict[str, Tensor]:
        new = self.lam + factor[:, None] * (self.diagonal - self.lam)
        return {"diagonal": new, "gain": (new / self.lam).log().sum(-1)}

    def reset(self) -> None:
        self.diagonal.fill_(self.lam)
        self.gain.zero_()


class Full(Design):
    """U^-1, p x p, by Sherman and Morrison."""

    def __init__(self, replicas: int, size: int, lam: float) -> None:
        super().__init__(replicas, size, lam)
        eye = torch.eye(size, dtype=torch.float64) / self.lam
        self.register_buffer("inverse", eye.repeat(replicas, 1, 1))

    inverse: Tensor

    def squared(self, g: Gradient) -> Tensor:
        v = g.dense()
        return (torch.bmm(v, self.inverse) * v).sum(-1)

    def between(self, g: Gradient, K: int) -> Tensor:
        v = g.dense()
        return _groups(torch.bmm(v, self.inverse), K) @ _groups(v, K).mT

    def rebuild(self, v: Tensor, weight: Tensor, who: Tensor | None = None) -> None:
        """U = lam I + sum weight v v^T from scratch, in all replicas or those of a mask.    (R, n, p), (R, n), (R,)"""
        eye = torch.eye(self.size, dtype=torch.float64, device=v.device)
        gram = torch.bmm((v * weight.unsqueeze(-1)).mT, v)
        inverse = torch.linalg.inv(self.lam * eye + gram)
        gain = torch.linalg.slogdet(eye + gram / self.lam).logabsdet
        self.inverse.copy_(inverse if who is None else torch.where(who[:, None, None], inverse, self.inverse))
        self.gain.copy_(gain if who is None else torch.where(who, gain, self.gain))

    def add(self, g: Gradient, weight: Tensor) -> None:
        v = g.dense()  # (R, 1, p)
        u = torch.bmm(v, self.inverse)
        growth = weight * (u * v).sum((-1, -2))
        u = u * (weight / (1.0 + growth)).sqrt()[:, None, None]
        self.inverse.baddbmm_(u.mT, u, alpha=-1.0)
        self.gain += growth.log1p()

    def scaled(self, factor: Tensor) -> dict[str, Tensor]:
        ridge = self.lam * torch.eye(self.size, dtype=torch.float64, device=self.inverse.device)
        new = ridge + factor[:, None, None] * (torch.linalg.inv(self.inverse) - ridge)
        gain = torch.linalg.slogdet(new / self.lam).logabsdet
        return {"inverse": torch.linalg.inv(new), "gain": gain}

    def reset(self) -> None:
        self.inverse.copy_(torch.eye(self.size, dtype=torch.float64, device=self.inverse.device) / self.lam)
        self.gain.zero_()


class Blockwise(Design):
    """U^-1 of disjoint vectors, block by block: (K, d, d) instead of (K d, K d), exactly.

    Args:
        blocks: K.
        size: K d.
    """

    def __init__(self, replicas: int, size: int, lam: float, blocks: int) -> None:
        super().__init__(replicas, size, lam)
        self.blocks = blocks
        eye = torch.eye(size // blocks, dtype=torch.float64) / self.lam
        self.register_buffer("inverse", eye.repeat(replicas, blocks, 1, 1))

    inverse: Tensor

    def squared(self, g: Gradient) -> Tensor:
        v, block = self._inside(g)
        return (own(torch.matmul(v.unsqueeze(1), self.inverse), block) * v).sum(-1)

    def between(self, g: Gradient, K: int) -> Tensor:
        v, block = self._inside(g)
        product = _groups(own(torch.matmul(v.unsqueeze(1), self.inverse), block), K) @ _groups(v, K).mT
        block = block.reshape(len(block), -1, K)
        return product * (block.unsqueeze(-1) == block.unsqueeze(-2))

    def add(self, g: Gradient, weight: Tensor) -> None:
        v, block = self._inside(g)  # (R, 1, d), (R, 1)
        where = torch.arange(self.replicas, device=block.device), block[:, 0]
        inverse = self.inverse[where]
        u = torch.bmm(v, inverse)
        growth = weight * (u * v).sum((-1, -2))
        u = u * (weight / (1.0 + growth)).sqrt()[:, None, None]
        self.inverse[where] = inverse.baddbmm_(u.mT, u, alpha=-1.0)
        self.gain += growth.log1p()

    @staticmethod
    def _inside(g: Gradient) -> tuple[Tensor, Tensor]:
        assert g.block is not None
        return g.layers[0][0], g.block

    def reset(self) -> None:
        self.inverse.copy_(torch.eye(self.inverse.shape[-1], dtype=torch.float64, device=self.gain.device) / self.lam)
        self.gain.zero_()


def matrix(replicas: int, size: int, lam: float, blocks: int | None) -> Full | Blockwise:
    """The confidence matrix of a linear model, whose contexts may come in blocks."""
    return Full(replicas, size, lam) if blocks is None else Blockwise(replicas, size, lam, blocks)


def _bands(n: int) -> list[slice]:
    """Rows of the factor that are multiplied together; one of none, where there are none."""
    return [slice(i, min(i + BAND, n)) for i in range(0, max(n, 1), BAND)]


class Dual(Design):
    """The kernel of what was played, as the inverse of its Cholesky factor, which grows by a row a round.

    Keeping L^-1 and not L turns every triangular solve into a matrix product on the buffer as it lies. What costs is
    reading it: products go by bands of rows and leave out the zeros above the diagonal.
    """

    counters = ("n", "blocks")
    blocks: int | None = None  # K where gradients are disjoint in the first layer
    block: Tensor

    def __init__(self, replicas: int, size: int, lam: float) -> None:
        super().__init__(replicas, size, lam)
        self.n, self.growing = 0, {"roots": (1,), "factor": (1, 2)}
        self.register_buffer("roots", torch.zeros(replicas, 0, dtype=torch.float64))  # sqrt(w_i)
        self.register_buffer("factor", torch.zeros(replicas, 0, 0, dtype=torch.float64))  # L^-1

    roots: Tensor
    factor: Tensor

    def played(self) -> Gradient:
        """The gradients in U.    -> (R, n, p)"""
        rows = {name: kept[:, : self.n] for name in self.parts if (kept := self._buffers.get(name)) is not None}
        pairs = [(a, rows.get("d" + name[1:])) for name, a in rows.items() if name[0] == "a"]
        return Gradient(pairs, rows.get("block"), self.blocks)

    @property
    def parts(self) -> list[str]:
        """The buffers that hold what gradients are made of, once the first one has shown their sizes."""
        return [name for name in self._buffers if name == "block" or name[:2] in ("a_", "d_")]

    def project(self, g: Gradient) -> Tensor:
        """L^-1 D^1/2 k, as columns.    (R, m, p) -> (R, n, m)"""
        n, factor = self.n, self.factor
        cross = g.gram(self.played()).mul_(self.roots[:, :n].unsqueeze(1)).mT
        if n <= BAND:
            return torch.bmm(factor[:, :n, :n], cross)
        return torch.cat([torch.bmm(factor[:, b, : b.stop], cross[:, : b.stop]) for b in _bands(n)], 1)

    def squared(self, g: Gradient) -> Tensor:
        squared = g.square()
        if self.n:
            squared = squared - self.project(g).square_().sum(1)
        return squared if self.lam == 1.0 else squared / self.lam

    def between(self, g: Gradient, K: int) -> Tensor:
        """K projections, not K^2: a difference's is the difference of theirs."""
        apart = g.map(lambda x: _groups(x, K).flatten(0, 1))
        gram = apart.gram(apart).view(self.replicas, -1, K, K)
        if self.n:
            z = _groups(self.project(g).mT, K)
            gram = gram - z @ z.mT
        return gram / self.lam

    def add(self, g: Gradient, weight: Tensor) -> None:
        self.gain.add_(self._append(g, weight).log().sub_(math.log(self.lam)))

    def _append(self, g: Gradient, weight: Tensor, with_rows: Tensor | None = None) -> Tensor:
        """A row more, and its squared pivot (R,). `with_rows` (R, n): the kernel with all other rows counts as 0."""
        n, root = self.n, weight.sqrt().unsqueeze(1)
        self._keep(g, root)
        with torch.inference_mode():
            cross = g.gram(self.played())  # with itself at the end    (R, 1, n + 1)
            cross.squeeze(1).mul_(self.roots[:, : n + 1]).mul_(root)
            new = self.factor[:, n : n + 1, : n + 1].zero_()
            row = self._solve(cross[..., :n], with_rows, new[..., :n])
            corner = cross[..., n].add_(self.lam).sub_(length2(row)).clamp_min_(self.lam)  # (R, 1)
            new[..., n:].fill_(1.0)
            new.div_(corner.sqrt().unsqueeze(1))
        return corner.squeeze(1)

    def _solve(self, cross: Tensor, with_rows: Tensor | None, new: Tensor) -> Tensor:
        """r = L^-1 cross, and -L^-T r added to `new`: a band of L^-1 serves both while it is in the cache. (R, 1, n)"""
        rows = []
        for b in _bands(cross.shape[-1]):
            band = self.factor[:, b, : b.stop]
            row = torch.bmm(cross[..., : b.stop], band.mT)
            rows.append(row if with_rows is None else row * with_rows[:, None, b])
            new[..., : b.stop].baddbmm_(rows[-1], band, alpha=-1.0)
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)

    def _keep(self, g: Gradient, root: Tensor) -> None:
        """Store what a gradient is made of, and sqrt(w); the buffers are made when the first one shows their sizes."""
        parts: dict[str, Tensor | None] = {"roots": root, "block": g.block}
        parts |= {f"a_{layer}": a for layer, (a, _) in enumerate(g.layers)}
        parts |= {f"d_{layer}": d for layer, (_, d) in enumerate(g.layers)}
        for name, part in parts.items():
            if part is not None and name not in self._buffers:
                self.register_buffer(name, part.new_zeros(self.replicas, 0, *part.shape[2:]))
                self.growing[name], self.blocks = (1,), g.blocks
        self.reserve(1)
        for name, part in parts.items():
            if part is not None:
                getattr(self, name)[:, self.n : self.n + 1] = part
        self.n += 1

    def scaled(self, factor: Tensor) -> dict[str, Tensor]:
        n = self.n
        if not n:
            return {}
        roots = self.roots[:, :n] * factor.sqrt()[:, None]
        kernel = self.played().gram(self.played()) * roots[:, :, None] * roots[:, None]
        eye = torch.eye(n, dtype=torch.float64, device=roots.device)
        lower = root(kernel + self.lam * eye, self.lam)
        gain = 2.0 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1) - n * math.log(self.lam)
        return {"roots": roots, "factor": torch.linalg.solve_triangular(lower, eye, upper=False), "gain": gain}

    def reset(self) -> None:
        self.n = 0
        self.gain.zero_()

    def set_extra_state(self, state: dict[str, int]) -> None:
        super().set_extra_state(state)
        self.growing.update({name: (1,) for name in self.parts})

    @torch.inference_mode(False)  # a user's: what is made here is updated in place after it too
    def full(self) -> Full:
        """The same matrix, p x p:  U^-1 = (I - G^T D^1/2 (lam I + D^1/2 K D^1/2)^-1 D^1/2 G) / lam."""
        full = Full(self.replicas, self.size, self.lam).to(self.gain.device)
        rows = torch.bmm(self.factor[:, : self.n, : self.n], self.roots[:, : self.n, None] * self.played().dense())
        full.inverse.baddbmm_(rows.mT, rows, alpha=-1.0 / self.lam)
        full.gain.copy_(self.gain)
        return full


class Auto(Design):
    """Dual until as many gradients are in it as they are long, then Full: the cheaper of the two in every round.

    A round of Dual at n costs about what a round of Full costs at p = n. The move is not made where p x p is too
    large, or where the horizon is known and too near to repay it.
    """

    def __init__(self, replicas: int, size: int, lam: float, horizon: int | None = None) -> None:
        super().__init__(replicas, size, lam)
        worth = size <= MOST and (horizon is None or horizon > 1.25 * size)
        self.turn, self.horizon = size if worth else None, horizon
        self.form: Dual | Full = self._dual()

    @torch.inference_mode(False)
    def _dual(self) -> Dual:
        dual = Dual(self.replicas, self.size, self.lam).to(self.gain.device)
        dual.most = self.turn or self.horizon
        return dual

    def squared(self, g: Gradient) -> Tensor:
        return self.form.squared(g)

    def between(self, g: Gradient, K: int) -> Tensor:
        return self.form.between(g, K)

    def add(self, g: Gradient, weight: Tensor) -> None:
        self.form.add(g, weight)
        if isinstance(self.form, Dual) and self.turn is not None and self.form.n >= self.turn:
            self.form = self.form.full()

    def rescale(self, factor: Tensor, who: Tensor) -> None:
        self.form.rescale(factor, who)

    def logdet(self) -> Tensor:
        return self.form.gain

    def reset(self) -> None:
        self.form = self._dual()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        full = f"{prefix}form.inverse" in state_dict
        if full != isinstance(self.form, Full):
            self.form = Full(self.replicas, self.size, self.lam).to(self.gain.device) if full else self._dual()
        super()._load_from_state_dict(state_dict, prefix, *args)


def build(kind: str, replicas: int, size: int, lam: float, horizon: int | None = None) -> Design:
    """A confidence matrix by name."""
    if kind == "auto":
        return Auto(replicas, size, lam, horizon)
    kinds: dict[str, type[Design]] = {"dual": Dual, "full": Full, "diagonal": Diagonal}
    if kind not in kinds:
        raise NblError(f"design={kind!r}: choose one of {', '.join(KINDS)}.")
    return kinds[kind](replicas, size, lam)
