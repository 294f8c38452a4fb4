"""Which algorithm is better, pair by pair: paired tests on shared seeds, Holm's correction, bootstrap intervals.

Replicas with the same seed met the same contexts and the same noise, so their difference is what is tested. With k
algorithms there are k (k - 1) / 2 pairs; Holm's correction keeps the chance of any false difference among them at the
level. Intervals are percentiles of means over resampled seeds: for a handful of seeds they are somewhat too narrow, and
the tests are what decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from nbl.report import claims
from nbl.types import NblError

Array = NDArray[np.float64]
TESTS = ("t", "wilcoxon")
CORRECTIONS = ("holm", "none")
RESAMPLES = 5000
TIE = "tie"


@dataclass(frozen=True)
class Pair:
    """a against b on n shared seeds. `difference` is mean(a) - mean(b); `winner` is a label, or `tie`."""

    a: str
    b: str
    n: int
    difference: float
    low: float
    high: float
    p: float
    adjusted: float
    winner: str


def pairs(
    values: Mapping[str, Mapping[int, float]],
    level: float = 0.05,
    correction: str = "holm",
    test: str = "t",
    lower_wins: bool = True,
) -> list[Pair]:
    """Every two of the labels, compared on the seeds they share.    label -> seed -> final value"""
    if test not in TESTS or correction not in CORRECTIONS or not 0 < level < 1:
        raise NblError(
            f"test={test}, correction={correction}, level={level}: need a test of {', '.join(TESTS)}, a correction of "
            f"{', '.join(CORRECTIONS)} and a level between 0 and 1."
        )
    found = []
    for a, b in combinations(values, 2):
        seeds = sorted(set(values[a]) & set(values[b]))
        x, y = (np.array([values[label][seed] for seed in seeds], dtype=np.float64) for label in (a, b))
        low, high = interval(x - y)
        found.append((a, b, len(seeds), float((x - y).mean()) if seeds else math.nan, low, high, two_sided(x, y, test)))
    adjusted = holm([row[-1] for row in found]) if correction == "holm" else [row[-1] for row in found]
    made = []
    for (a, b, n, difference, low, high, p), now in zip(found, adjusted, strict=True):
        better = a if (difference < 0) == lower_wins else b
        made.append(Pair(a, b, n, difference, low, high, p, now, better if now < level and difference else TIE))
    return made


def two_sided(x: Array, y: Array, test: str = "t") -> float:
    """p-value of 'the two are equal on average', paired. One pair tells nothing: 1.    (n,), (n,)"""
    if len(x) < 2:
        return 1.0
    if test == "t":
        verdict = claims.better(x, y)
        return min(1.0, 2 * min(verdict.p_for, verdict.p_against))
    difference = x - y
    if not np.isfinite(difference).all() or not difference.any():
        return 1.0
    from scipy.stats import wilcoxon

    return float(wilcoxon(difference, zero_method="pratt").pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: the j-th smallest of m is multiplied by m - j + 1, and none is below the last."""
    order = np.argsort(p, kind="stable")
    adjusted, running = np.empty(len(p)), 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = running
    return [float(value) for value in adjusted]


def wins(found: Sequence[Pair], labels: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Wins, ties and losses of each label."""
    count = {label: [0, 0, 0] for label in labels}
    for pair in found:
        for one in (pair.a, pair.b):
            count[one][1 if pair.winner == TIE else 0 if pair.winner == one else 2] += 1
    return {label: (w, t, lost) for label, (w, t, lost) in count.items()}


def interval(values: Array, level: float = 0.95) -> tuple[float, float]:
    """Bootstrap interval of the mean, by percentiles. The same numbers give the same interval.    (n,)"""
    low, high = band(values[:, None], level)
    return float(low[0]), float(high[0])


def band(curves: Array, level: float = 0.95) -> tuple[Array, Array]:
    """Bootstrap interval of the mean at each point; NaN with fewer than two replicas.    (n, T) -> (T,), (T,)"""
    n = len(curves)
    if n < 2:
        nothing = np.full(curves.shape[1], np.nan)
        return nothing, nothing
    low, high = np.quantile(_resampled(n, RESAMPLES) @ curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


@lru_cache(maxsize=8)
def _resampled(n: int, times: int) -> Array:
    """How often each of n is drawn, as a share.    -> (times, n)"""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=times) / n
