"""The picture of three tail bounds beside what they bound: `python -m nbl.report.tail_bounds docs/tail_bounds.png`.

Left, few dimensions and a moderate kappa: constants decide, and Theorem 3.1 has the largest. Right, data in 5 of 2000
dimensions, as gradients of a network are, and rewards nearly certain: Faury's bound grows with the dimension of the
space, Verma's with sqrt(kappa), Theorem 3.1's with neither. The title of each half says in how many of the simulated
runs a bound failed at any round, in the order of the legend.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from nbl import bounds
from nbl.report.figures import _page, _png

NAMES = {"theorem_3_1": "Theorem 3.1", "faury": "Faury et al. 2020", "verma": "Verma et al. 2025"}


def tail_bounds(runs: int = 300, rounds: int = 1000, lam: float = 5.0, delta: float = 0.05) -> bytes:
    """Simulate and draw, as a PNG."""
    figure, halves = _page(2)
    for axes, (dim, S) in zip(halves, ((5, 4.0), (2000, 9.0)), strict=True):
        found = bounds.simulate(runs, rounds, dim, 5, lam, S, delta)
        t, failed = range(1, rounds + 1), []
        for i, (name, label) in enumerate(NAMES.items()):
            bound = getattr(found, name)
            axes.plot(t, bound.mean(0), color=f"C{i}", label=label)
            failed.append(f"{float((found.norm > bound).any(1).double().mean()):.1%}")
        axes.plot(t, found.norm.quantile(1 - delta, 0), color="black", label=f"simulated, {1 - delta:.0%} quantile")
        axes.set(xlabel="t", ylabel="||s_t|| in H_t^-1", yscale="log")
        axes.set_title(
            f"d = {dim}, kappa = {2 + 2 * math.cosh(S):.0f}; failed: {', '.join(failed)} of {runs}", fontsize=9
        )
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(f"Data in 5 dimensions, lambda = {lam:g}, delta = {delta:g}", fontsize=10)
    return _png(figure)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "tail_bounds.png").write_bytes(tail_bounds())
