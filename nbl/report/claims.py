"""What a paper claims about a figure, as tests on the replicas: agreement, disagreement or inconclusive.

Regret is one number a replica, and replicas are paired by their seed, which gives them the same contexts and the same
noise in every algorithm. Lower is better throughout. Each test has two one-sided p-values: `p_for`, how easily data
that speak this much for the claim come about where it is false, and `p_against`, the other way round. At most one of
them is below the level of 5%; where neither is, the replicas cannot tell.

Times have no replicas, since all replicas of a run advance together: they are paired by block of rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

LEVEL = 0.05
AGREEMENT, DISAGREEMENT, INCONCLUSIVE = "agreement", "disagreement", "inconclusive"
Values = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """What a test found. `detail` has the numbers in words."""

    p_for: float
    p_against: float
    detail: str

    @property
    def outcome(self) -> str:
        if self.p_for < LEVEL:
            return AGREEMENT
        return DISAGREEMENT if self.p_against < LEVEL else INCONCLUSIVE


def at_most(a: Values, b: Values, factor: float = 1.0) -> Verdict:
    """E[a] < factor E[b]: a paired t-test of a - factor b, one-sided each way.    (n,), (n,)"""
    x, y = _pairs(a, b)
    below, above = _t_test(x - factor * y)
    return Verdict(below, above, f"{_ratio(x, y)}, {len(x)} pairs")


def better(a: Values, b: Values) -> Verdict:
    """E[a] < E[b].    (n,), (n,)"""
    return at_most(a, b)


def close(a: Values, b: Values, within: float) -> Verdict:
    """|E[a] - E[b]| < within E[b]: two one-sided paired t-tests, at both ends.    (n,), (n,)

    For the claim both must pass, so each has the full level. Against it either may, so each has half of it.
    """
    if not within > 0:
        raise ValueError(f"close(within={within}): need a share above 0, for example 0.1.")
    x, y = _pairs(a, b)
    below, above = _t_test(x - (1 + within) * y)
    under, over = _t_test(x - (1 - within) * y)
    return Verdict(max(below, over), min(1.0, 2 * min(above, under)), f"{_ratio(x, y)}, {len(x)} pairs")


def faster(times_a: Values, times_b: Values, factor: float = 1.0) -> Verdict:
    """a takes less than `factor` times the time of b: a paired t-test of the log ratio of blocks.    (n,), (n,)"""
    x, y = _pairs(times_a, times_b)
    ratio = np.log(np.maximum(x, 1e-12)) - np.log(np.maximum(y, 1e-12))
    below, above = _t_test(ratio - math.log(factor))
    return Verdict(below, above, f"{np.exp(ratio.mean()):.2f} times the time, {len(x)} blocks")


def best(name: str, values: Mapping[str, Values], others: Iterable[str] | None = None) -> Verdict:
    """`name` has the lowest mean: better than each of the others (all the rest by default)."""
    rivals = [other for other in (values if others is None else others) if other != name]
    return every({other: better(values[name], values[other]) for other in rivals})


def sublinear(curves: NDArray[np.float64]) -> Verdict:
    """Regret grows less than linearly: less of it in the second half of the rounds than in the first.    (n, T)"""
    half = curves.shape[1] // 2
    first = curves[:, half - 1]
    return better(curves[:, 2 * half - 1] - first, first)


def every(verdicts: Mapping[str, Verdict]) -> Verdict:
    """All of the claims at once: the weakest must pass; against, the strongest, with Bonferroni's correction."""
    if not verdicts:
        return Verdict(1.0, 1.0, "nothing to compare with")
    if len(verdicts) == 1:
        return next(iter(verdicts.values()))
    return Verdict(
        max(v.p_for for v in verdicts.values()),
        min(1.0, len(verdicts) * min(v.p_against for v in verdicts.values())),
        "; ".join(f"{name}: {v.detail}" for name, v in verdicts.items()),
    )


# Claims about a plain function: there is no chance in them ------------------------------------------------------------


def lowest(x: Values, y: Values, at: float, within: float = 0.05) -> Verdict:
    """The curve y(x) is lowest at x = `at`, up to the share `within`.    (n,), (n,)"""
    place = float(np.asarray(x)[int(np.argmin(y))])
    return _certain(abs(place - at) <= within * at, f"lowest at {place:.3f}")


def sensitive(curves: Values | Sequence[Values]) -> Verdict:
    """The value moves more along a curve than from curve to curve.    (curves, n)"""
    y = np.asarray(curves, dtype=np.float64)
    along, across = (y.max(1) / y.min(1)).min(), (y.max(0) / y.min(0)).max()
    return _certain(bool(along > across), f"a factor {along:.2f} along a curve, {across:.2f} between curves")


def slope(x: Values, y: Values, at: float, within: float = 0.1, bound: bool = False) -> Verdict:
    """log y moves with log x at the slope `at`, up to `within`; a `bound` may be kept by more.    (n,), (n,)"""
    found = float(np.polyfit(np.log(np.asarray(x, dtype=np.float64)), np.log(np.asarray(y, dtype=np.float64)), 1)[0])
    off = found - at if bound else abs(found - at)
    return _certain(off <= within, f"slope {found:.3f}")


TESTS: dict[str, Callable[..., Verdict]] = {"better": better, "close": close, "at_most": at_most, "faster": faster}


def _pairs(a: Values, b: Values) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"pairs are needed, but the shapes are {x.shape} and {y.shape}.")
    return x, y


def _t_test(difference: NDArray[np.float64]) -> tuple[float, float]:
    """p-values of 'the mean is below 0' and 'the mean is above 0'. One pair, or a number missing, tells nothing."""
    n = len(difference)
    if n < 2 or not np.isfinite(difference).all():
        return 1.0, 1.0
    mean, error = float(difference.mean()), float(difference.std(ddof=1)) / math.sqrt(n)
    if error <= 1e-12 * max(1.0, abs(mean)):  # the replicas agree to the last digit
        return (0.0, 1.0) if mean < 0 else (1.0, 0.0) if mean > 0 else (1.0, 1.0)
    return float(stdtr(n - 1, mean / error)), float(stdtr(n - 1, -mean / error))


def _ratio(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    top, bottom = float(x.mean()), float(y.mean())
    shown = f" (ratio {top / bottom:.2f})" if bottom else ""
    return f"{top:.4g} against {bottom:.4g}{shown}"


def _certain(holds: Any, detail: str) -> Verdict:
    return Verdict(0.0, 1.0, detail) if holds else Verdict(1.0, 0.0, detail)
