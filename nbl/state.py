"""State that grows: buffers with room to spare, saved without it, and restored at whatever size they were saved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class State(nn.Module):
    """A module whose buffers may grow.

    `growing` names the buffers with rows to spare and the axes that grow; `counters` names the plain numbers that
    travel with them. The first counter, `n`, is how much of each growing axis is in use. Loading takes names and
    shapes from the checkpoint.
    """

    counters: tuple[str, ...] = ("n",)
    n: int

    def __init__(self) -> None:
        super().__init__()
        self.growing: dict[str, tuple[int, ...]] = {}

    most: int | None = None  # rows that will ever be needed, where that is known

    def reserve(self, rows: int) -> None:
        """Make room for `rows` more: 16, 32, 64, .. rows, so that a row appended costs O(1) copies on average.

        The room is a function of what is needed and of nothing else: a product of part of a buffer rounds by how far
        its rows lie apart, and a resumed run must round as one that never stopped.
        """
        need = self.n + rows
        doubled = 0 if not need else 1 << max(4, (need - 1).bit_length())
        room = doubled if self.most is None or self.most < need else min(doubled, self.most)
        for name, axes in self.growing.items():
            old = self._buffers[name]
            assert old is not None
            if old.shape[axes[0]] == room:
                continue
            shape, used = list(old.shape), [slice(None)] * old.ndim
            for axis in axes:
                shape[axis], used[axis] = room, slice(0, min(self.n, old.shape[axis]))
            with torch.inference_mode(False):  # a user's; rows are written in place after it too
                new = old.new_zeros(shape)
                new[tuple(used)] = old[tuple(used)]
            setattr(self, name, new)

    def get_extra_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.counters}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name in self.counters:
            setattr(self, name, state[name])

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, axes in self.growing.items():
            used = destination[prefix + name]
            for axis in axes:
                used = used.narrow(axis, 0, self.n)
            destination[prefix + name] = used.clone(memory_format=torch.contiguous_format)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        take_shapes(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
        if self.growing:
            self.reserve(0)


def take_shapes(module: nn.Module, state_dict: dict[str, Any], prefix: str) -> None:
    """Give the module's own buffers the names and shapes that a checkpoint has."""
    for key, value in state_dict.items():
        name = key[len(prefix) :]
        ours = key.startswith(prefix) and "." not in name and name not in module._parameters
        if ours and isinstance(value, Tensor):
            now = module._buffers.get(name)
            if now is None or now.shape != value.shape:
                like = value if now is None else now
                module.register_buffer(name, torch.empty_like(value, device=like.device, dtype=like.dtype))
