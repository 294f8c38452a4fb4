"""Random numbers that are a function of a seed and a round: nothing to save, nothing to disturb."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def uniform(seed: int, round: int) -> float:
    """Uniform on (0, 1): SplitMix64's finaliser over (seed, round)."""
    x = _mix(_mix(seed * 0x9E3779B97F4A7C15 + 0x5851F42D4C957F2D) + round * 0x9E3779B97F4A7C15)
    return ((x >> 11) + 0.5) * 2.0**-53


def _mix(x: int) -> int:
    x &= _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)
