"""What was played and what came back, as (inputs, targets, weights) for the inner training.

`History` keeps every observation. `ArmHistory` keeps sums per arm, for arms that never change: the gradients of
squared and exponential-family losses are linear in the targets, so the loss over t rounds is, up to a constant, a
weighted loss over K arms, and training costs O(K) a round instead of O(t), exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nbl.state import State
from nbl.types import NblError


class Data(NamedTuple):
    """inputs (R, n, d), targets (R, M, n), weights (R, n) or one a member, (R, M, n); `rest` (R, M) is the part of the
    squared loss that sums per arm leave out.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    rest: Tensor


class History(State):
    """Every observation, in buffers that grow by doubling. `own`: a weight for each member, (R, M, q) where (R, q)."""

    def __init__(self, replicas: int, dim: int, members: int = 1, own: bool = False) -> None:
        super().__init__()
        self.n = 0  # observations a replica
        self.growing = {"inputs": (1,), "targets": (2,), "weights": (2 if own else 1,)}
        self.register_buffer("inputs", torch.zeros(replicas, 0, dim))
        self.register_buffer("targets", torch.zeros(replicas, members, 0))
        self.register_buffer("weights", torch.zeros((replicas, members, 0) if own else (replicas, 0)))

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    layout: Mapping[str, str] = {"targets": "RM"}

    def append(self, contexts: Tensor, arms: Tensor, targets: Tensor, weights: Tensor) -> None:
        """Add q observations; a duel is its two contexts side by side.    (R, q, K, d), (R, q), (R, M, q), (R, q)"""
        q = arms.shape[1]
        self.reserve(q)
        rows = slice(self.n, self.n + q)
        self.inputs[:, rows] = take(contexts, arms).flatten(2)
        self.targets[..., rows] = targets
        self.weights[..., rows] = weights
        self.n += q

    def newest(self, q: int) -> Tensor:
        """What was played in the last q observations, a view.    -> (R, q, d)"""
        return self.inputs[:, self.n - q : self.n]

    def data(self) -> Data:
        inputs, targets, weights = self.inputs[:, : self.n], self.targets[..., : self.n], self.weights[..., : self.n]
        return Data(inputs, targets, weights, targets.new_zeros(targets.shape[:2]))

    def reset(self) -> None:
        self.n = 0


class ArmHistory(State):
    """Sums per arm: total weight (`own`: of each member), and weighted sums of the targets and of their squares."""

    def __init__(self, replicas: int, arms: int, dim: int, members: int = 1, own: bool = False) -> None:
        super().__init__()
        self.n = 0  # observations a replica
        self.register_buffer("inputs", torch.zeros(replicas, arms, dim))
        self.register_buffer("weights", torch.zeros((replicas, members, arms) if own else (replicas, arms)))
        self.register_buffer("sums", torch.zeros(replicas, members, arms))
        self.register_buffer("squares", torch.zeros(replicas, members, arms))

    inputs: Tensor
    weights: Tensor
    sums: Tensor
    squares: Tensor
    layout: Mapping[str, str] = {"sums": "RM", "squares": "RM"}

    def append(self, contexts: Tensor, arms: Tensor, targets: Tensor, weights: Tensor) -> None:
        """Add q observations.    (R, q, K, d), (R, q), (R, M, q), (R, q)"""
        if self.n == 0:
            self.inputs.copy_(contexts[:, 0])
        elif contexts.device.type == "cpu" and not torch.equal(
            contexts.to(self.inputs.dtype), self.inputs.unsqueeze(1).expand_as(contexts)
        ):
            raise NblError(
                "the arms changed, but this policy was told that they are fixed. Build it with fixed_arms=False, "
                "or pass the same contexts in every round."
            )
        each = arms.unsqueeze(1).expand_as(weights) if weights.ndim == 3 else arms
        self.weights.scatter_add_(-1, each, weights.to(self.weights.dtype))
        values = (targets * _a_member(weights)).to(self.sums.dtype)
        index = arms.unsqueeze(1).expand_as(values)
        self.sums.scatter_add_(2, index, values)
        self.squares.scatter_add_(2, index, values * targets.to(values.dtype))
        self.n += arms.shape[1]

    def data(self) -> Data:
        """An arm never played has weight 0, and so no say."""
        targets = self.sums / _a_member(self.weights.where(self.weights > 0, 1.0))
        rest = 0.5 * (self.squares - self.sums * targets).sum(-1)
        return Data(self.inputs, targets, self.weights, rest)

    def reset(self) -> None:
        self.n = 0
        self.weights.zero_()
        self.sums.zero_()
        self.squares.zero_()


def _a_member(weights: Tensor) -> Tensor:
    """(R, n) -> (R, 1, n); (R, M, n) stays."""
    return weights if weights.ndim == 3 else weights.unsqueeze(1)


def take(contexts: Tensor, arms: Tensor) -> Tensor:
    """The contexts of the arms played.    (R, q, K, d), (R, q) or (R, q, n) -> (R, q, d) or (R, q, n, d)"""
    several = arms if arms.ndim == 3 else arms.unsqueeze(-1)
    found = contexts.gather(2, several.unsqueeze(-1).expand(*several.shape, contexts.shape[-1]))
    return found.view(*arms.shape, contexts.shape[-1])


def one_by_one(pairs: Tensor) -> Tensor:
    """Pairs side by side, one after another.    (R, n, 2 d) -> (R, 2 n, d)"""
    return pairs.reshape(len(pairs), -1, pairs.shape[-1] // 2)
