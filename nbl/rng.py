"""Counter-based random numbers: a draw is a function of (seed, purpose, round), and of nothing else.

There is no state to save and none to disturb. Asking twice gives the same numbers, a batch of replicas gets what
each would get alone, and two algorithms with the same seed meet the same contexts and the same noise.

The generator is SplitMix64's finaliser over a counter (Steele, Lea, Flood 2014), written in wrapping int64 arithmetic
so that it runs on any device.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_BLOCK = 1 << 18  # numbers drawn ahead, so that a round costs a slice and not a draw


def _signed(x: int) -> int:
    """The same 64 bits, as Python's signed number: what an int64 tensor holds."""
    x &= _MASK
    return x - (1 << 64) if x >> 63 else x


_C1, _C2 = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser, element by element; int64 multiplication wraps, and `>>` is made logical by a mask."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _C1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _C2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


class Streams:
    """Random numbers for replicas with these seeds.

        streams = Streams(seeds=[0, 1, 2])
        noise = streams.normal("noise", t=7, shape=(4,))       # (3, 4), the same whenever it is asked for

    Args:
        seeds: one a replica.
        domain: keeps users of the same seed apart (environments from algorithms).
    """

    def __init__(self, seeds: Sequence[int], domain: str) -> None:
        self.seeds, self.domain = tuple(int(s) for s in seeds), domain
        self._blocks: dict[tuple[object, ...], tuple[int, Tensor]] = {}

    def uniform(self, purpose: str, t: int, shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """Uniform on (0, 1), float64.    -> (R, *shape)"""
        return self._draw("uniform", purpose, t, tuple(shape), torch.device(device))

    def normal(
        self, purpose: str, t: int, shape: Sequence[int], device: torch.device | str = "cpu", ahead: bool = True
    ) -> Tensor:
        """Standard normal, float64; `ahead=False` where the shape changes every round.    -> (R, *shape)"""
        return self._draw("normal", purpose, t, tuple(shape), torch.device(device), ahead)

    def _draw(
        self, kind: str, purpose: str, t: int, shape: tuple[int, ...], device: torch.device, ahead: bool = True
    ) -> Tensor:
        """Rounds are drawn in blocks that are kept until another block is asked for: a memo, not a state.

        Round 0, where problems and weights are drawn, is asked for once: nothing is drawn ahead or kept.
        """
        size = math.prod(shape)
        rounds = max(1, min(256, _BLOCK // max(1, size * len(self.seeds)))) if t > 0 and ahead else 1
        key, block = (kind, purpose, shape, device), t // rounds
        kept = self._blocks.get(key)
        if kept is None or kept[0] != block:
            first = torch.arange(block * rounds, (block + 1) * rounds, device=device)
            drawn = self._normals(purpose, first, size) if kind == "normal" else self._uniforms(purpose, first, size)
            kept = (block, drawn.view(len(self.seeds), rounds, *shape))
            if len(self._blocks) >= 64:  # a service whose number of arms keeps changing
                self._blocks.clear()
            if rounds > 1:
                self._blocks[key] = kept
        return kept[1][:, t % rounds].clone()

    def _uniforms(self, purpose: str, rounds: Tensor, size: int) -> Tensor:
        """(R, rounds, size): hash of the key of (seed, domain, purpose), of the round, and of the place in the draw."""
        name = zlib.crc32(f"{self.domain}/{purpose}".encode())
        keys = torch.tensor([_signed(s * _GOLDEN + (name << 20) + 1) for s in self.seeds], device=rounds.device)
        state = _mix(_mix(keys)[:, None] + rounds * _signed(_GOLDEN))
        place = torch.arange(1, size + 1, device=rounds.device) * _signed(_GOLDEN)
        bits = _mix(state[..., None] + place) >> 11  # the upper 53 bits, signed
        return (bits & ((1 << 53) - 1)).double().add_(0.5).mul_(2.0**-53)

    def _normals(self, purpose: str, rounds: Tensor, size: int) -> Tensor:
        """Box-Muller."""
        u = self._uniforms(purpose, rounds, 2 * size)
        radius = (-2.0 * u[..., :size].log()).sqrt_()
        return radius * torch.cos(2.0 * math.pi * u[..., size:])
