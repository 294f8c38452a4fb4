"""What every confidence matrix is: U, what it grows by, and the widths that it gives."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from typing_extensions import Self

from nbl.gradient import Gradient
from nbl.state import State
from nbl.types import NblError
from nbl.values import finite


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


def groups(x: Tensor, K: int) -> Tensor:
    """K rows in turn.    (R, q K, p) -> (R, q, K, p)"""
    return x.reshape(len(x), -1, K, x.shape[-1])


def root(matrix: Tensor, lam: float) -> Tensor:
    """The Cholesky factor of a covariance.    (R, d, d) -> (R, d, d)"""
    found: tuple[Tensor, Tensor] = torch.linalg.cholesky_ex(matrix)
    factor, failed = found
    if failed.device.type == "cpu" and bool(failed.any()):
        raise DesignError(f"the covariance has lost its positive eigenvalues to rounding; raise `lam` (now {lam:g}).")
    return factor
