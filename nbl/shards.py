"""A run over several processes: who plays what, and how their states make one.

Replicas are shared out, in slices that differ by at most one: nothing is synchronised but results. With fewer replicas
than processes the members of an ensemble are shared out instead: every process plays every round, with the scores of
all members. A checkpoint is always that of the whole run, so it resumes on any number of processes.

State says where its replicas and members are by `layout`, a letter an axis, for what is not (R, ...):

    R   replicas        M   members        B   both, R * M rows        -   something else

    layout = {"theta": "B", "targets": "RM", "moments": "-B", "constant": ""}      # "": the same in every process
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nbl.types import NblError


def slices(n: int, world: int) -> list[tuple[int, int]]:
    """First and count of each process's slice of n.    slices(5, 2) = [(0, 3), (3, 2)]"""
    each, more = divmod(n, world)
    return [(rank * each + min(rank, more), each + (rank < more)) for rank in range(world)]


@dataclass(frozen=True)
class Share:
    """What one of `world` processes plays of `replicas` replicas, the first of which has `seed`."""

    replicas: int
    seed: int = 0
    rank: int = 0
    world: int = 1

    @property
    def by_members(self) -> bool:
        return self.replicas < self.world

    @property
    def parts(self) -> list[tuple[int, int]]:
        """First replica and count of each process."""
        return [(0, self.replicas)] * self.world if self.by_members else slices(self.replicas, self.world)

    @property
    def first(self) -> int:
        return self.parts[self.rank][0]

    @property
    def count(self) -> int:
        return self.parts[self.rank][1]


class Members:
    """Which members of an ensemble are here. On one process: all of them, and everything below changes nothing."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world

    def count(self, members: int) -> int:
        """How many of M are here."""
        if members < self.world:
            raise NblError(
                f"{members} members cannot be shared out over {self.world} processes. Use at most "
                f"trainer.devices={members}, or more replicas than processes."
            )
        return slices(members, self.world)[self.rank][1]

    def mine(self, x: Tensor, dim: int) -> Tensor:
        """Of one entry a member, those here."""
        return x if self.world == 1 else x.narrow(dim, *slices(x.shape[dim], self.world)[self.rank])

    def join(self, x: Tensor, members: int, dim: int) -> Tensor:
        """Of one entry a member here, those of all M, in order; every process calls this together."""
        if self.world == 1:
            return x
        parts = slices(members, self.world)
        rows = x.transpose(0, dim)
        padded = rows.new_zeros(parts[0][1], *rows.shape[1:])
        padded[: len(rows)] = rows
        everyone = [torch.empty_like(padded) for _ in parts]
        try:
            torch.distributed.all_gather(everyone, padded)
        except RuntimeError as error:
            raise gone(error) from error
        return torch.cat([a[:n] for a, (_, n) in zip(everyone, parts, strict=True)]).transpose(0, dim)


def gone(error: Exception) -> NblError:
    """What a process says that finds itself alone."""
    why = re.sub(r"^\[[^\]]*\]\s*", "", str(error).splitlines()[0]).split(". ")[0]  # without the path of the C++ file
    return NblError(
        f"another process of this run has ended or cannot be reached ({why}): what it said last is the cause."
    )


# One state out of many, and back --------------------------------------------------------------------------------------


def join_states(root: nn.Module, states: Sequence[Mapping[str, Any]], share: Share) -> dict[str, Any]:
    """The `state_dict` of the whole run from those of its processes."""
    return {
        key: _join([state[key] for state in states], _layout(root, key), share) if isinstance(value, Tensor) else value
        for key, value in states[0].items()
    }


def cut_state(root: nn.Module, state: Mapping[str, Any], share: Share) -> dict[str, Any]:
    """This process's part of a `state_dict` of the whole run."""
    return {
        key: _cut(value, _layout(root, key), share, key) if isinstance(value, Tensor) else value
        for key, value in state.items()
    }


def _layout(root: nn.Module, key: str) -> str:
    owner: Any = root
    *path, name = key.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    layout: str = getattr(owner, "layout", {}).get(name, "R")
    return layout


def _axis(layout: str, share: Share) -> int | None:
    wanted = "MB" if share.by_members else "RB"
    return next((axis for axis, letter in enumerate(layout) if letter in wanted), None)


def _join(parts: list[Tensor], layout: str, share: Share) -> Tensor:
    axis = _axis(layout, share)
    if axis is None:
        return parts[0]
    if share.by_members and layout[axis] == "B":  # row r * M + m
        return torch.cat([_rows(part, axis, share) for part in parts], axis + 1).flatten(axis, axis + 1)
    return torch.cat(parts, axis)


def _cut(whole: Tensor, layout: str, share: Share, name: str) -> Tensor:
    axis = _axis(layout, share)
    if axis is None:
        return whole
    if not share.by_members:
        if axis >= whole.ndim or whole.shape[axis] % share.replicas:
            raise NblError(
                f"{name} has shape {tuple(whole.shape)}: it does not hold {share.replicas} replicas along axis {axis}. "
                "Say where they are: layout = {name: ...}, see nbl.shards; or resume on one process."
            )
        each = whole.shape[axis] // share.replicas
        return whole.narrow(axis, share.first * each, share.count * each).clone()
    if layout[axis] == "B":
        rows = _rows(whole, axis, share)
        return rows.narrow(axis + 1, *slices(rows.shape[axis + 1], share.world)[share.rank]).flatten(axis, axis + 1)
    return whole.narrow(axis, *slices(whole.shape[axis], share.world)[share.rank]).clone()


def _rows(x: Tensor, axis: int, share: Share) -> Tensor:
    """R * M rows as (R, M)."""
    return x.reshape(*x.shape[:axis], share.replicas, -1, *x.shape[axis + 1 :])


# Callbacks' states: any tree of plain values and tensors --------------------------------------------------------------


def join_trees(trees: Sequence[Any], share: Share, axes: Mapping[str, int], name: str = "") -> Any:
    """Tensors with one entry a replica are put side by side; of anything else the first process's is taken.

    Args:
        trees: of each process.
        share: who has which replicas.
        axes: the axis of the replicas, by name, where it is not the first.
        name: of this tree in the one above.
    """
    first = trees[0]
    if isinstance(first, dict):
        return {key: join_trees([tree[key] for tree in trees], share, axes, str(key)) for key in first}
    if isinstance(first, list | tuple) and all(len(tree) == len(first) for tree in trees):
        return type(first)(join_trees(list(items), share, axes, name) for items in zip(*trees, strict=True))
    if all(isinstance(tree, Tensor) for tree in trees):
        axis, counts = axes.get(name, 0), [count for _, count in share.parts]
        if not share.by_members and [tree.shape[axis : axis + 1] for tree in trees] == [(n,) for n in counts]:
            return torch.cat(_padded(trees, axis), axis)
    if all(isinstance(tree, int) and not isinstance(tree, bool) for tree in trees):
        return max(trees)  # the length of a warm-up may differ: the longest is that of the whole run
    return first


def cut_tree(tree: Any, share: Share, axes: Mapping[str, int], name: str = "") -> Any:
    """This process's part of a callback's state."""
    if isinstance(tree, dict):
        return {key: cut_tree(item, share, axes, str(key)) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(cut_tree(item, share, axes, name) for item in tree)
    axis = axes.get(name, 0)
    if isinstance(tree, Tensor) and not share.by_members and tree.shape[axis : axis + 1] == (share.replicas,):
        return tree.narrow(axis, share.first, share.count).clone()
    return tree


def _padded(parts: Sequence[Tensor], axis: int) -> list[Tensor]:
    """Plans of unequal length, filled up with -1: the algorithm chooses."""
    shape = [max(sizes) for sizes in zip(*(part.shape for part in parts), strict=True)]
    padded = []
    for part in parts:
        shape[axis] = part.shape[axis]
        full = part.new_full(shape, -1)
        full[tuple(slice(0, n) for n in part.shape)] = part
        padded.append(full)
    return padded
