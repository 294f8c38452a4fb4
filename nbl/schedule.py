"""When to retrain."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nbl.state import State
from nbl.types import NblError
from nbl.values import whole


class Schedule(State):
    """Retrain after every n observations, at geometric times, or when the confidence matrix has grown enough.

    Args:
        every: after every n observations.
        factor: at times that grow by this factor, instead of `every`.
        logdet: when det U has grown by this factor since the last retraining, replica by replica, instead of `every`.
        until: never after this many observations.
    """

    counters = ("next", "seen")

    def __init__(
        self,
        replicas: int,
        every: int = 1,
        factor: float | None = None,
        logdet: float | None = None,
        until: int | None = None,
    ) -> None:
        super().__init__()
        if not whole(every, 1):
            raise NblError(f"retrain.every={every!r}: need a whole number, at least 1.")
        for name, value in (("factor", factor), ("logdet", logdet)):
            if value is not None and not (isinstance(value, int | float) and value > 1):
                raise NblError(f"retrain.{name}={value!r}: need a number above 1.")
        if until is not None and not whole(until, 1):
            raise NblError(f"retrain.until={until!r}: need a whole number of observations, at least 1.")
        if factor is not None and logdet is not None:
            raise NblError("retrain has both factor and logdet: choose one.")
        self.every, self.factor, self.growth, self.until = every, factor, logdet, until
        self.next, self.seen = 1, 0
        self.register_buffer("mark", torch.full((replicas,), -math.inf, dtype=torch.float64))

    mark: Tensor

    def due(self, n: int, logdet: Tensor | None) -> bool | Tensor:
        """After n observations: all replicas (True), none (False), or a mask (R,). Asking again for the same n gives
        False.
        """
        if n == self.seen or (self.until is not None and n > self.until):
            return False
        before, self.seen = self.seen, n
        if self.growth is not None:
            if logdet is None:
                raise NblError(
                    "retrain.logdet needs an algorithm with a confidence matrix; use retrain.every or retrain.factor."
                )
            grown = logdet - self.mark >= math.log(self.growth)
            self.mark.copy_(torch.where(grown, logdet, self.mark))
            return grown
        if self.factor is not None:
            if n < self.next:
                return False
            self.next = max(n + 1, math.ceil(n * self.factor))
            return True
        return n // self.every > before // self.every

    def reset(self) -> None:
        self.next, self.seen = 1, 0
        self.mark.fill_(-math.inf)


def build(options: dict[str, Any] | None, replicas: int) -> Schedule:
    """`retrain={"every": 50}`"""
    options = dict(options or {})
    known = ("every", "factor", "logdet", "until")
    if unknown := sorted(set(options) - set(known)):
        raise NblError(f"retrain has no option {', '.join(unknown)}; it has {', '.join(known)}.")
    return Schedule(replicas, **options)
