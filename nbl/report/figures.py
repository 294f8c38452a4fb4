"""The pictures of a suite, one a panel, as PNG and drawn without a display."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
_POINTS = 500  # points on a curve: more cannot be seen


def regret(curves: Mapping[str, Array], title: str, name: str = "cumulative regret, mean and 95% band") -> bytes:
    """Mean cumulative regret of each algorithm with its 95% band.    label -> (R, T)"""
    figure, (axes,) = _page(1)
    _curves(axes, curves)
    axes.set(title=title, ylabel=name)
    return _png(figure)


def sweep(curves: Mapping[str, Array], values: Sequence[float], name: str, title: str) -> bytes:
    """The curves, and beside them the final regret against the value that was changed.    label -> (R, T)"""
    figure, (left, right) = _page(2)
    _curves(left, curves)
    final = [curve[:, -1] for curve in curves.values()]
    x = np.arange(len(final))
    right.errorbar(x, [v.mean() for v in final], [_half(v) for v in final], fmt="o-", capsize=3, color="tab:gray")
    right.set(xlabel=name, ylabel="regret after the last round", xticks=x, xticklabels=[str(v) for v in values])
    right.set_ylim(bottom=0)
    right.grid(alpha=0.3)
    figure.suptitle(title)
    return _png(figure)


def times(costs: Mapping[str, tuple[float, float]], title: str) -> bytes:
    """What a round costs: selection and update, in milliseconds of process time.    label -> (select, update)"""
    figure, (axes,) = _page(1)
    y = np.arange(len(costs))
    select, update = (np.array([cost[i] for cost in costs.values()]) for i in (0, 1))
    axes.barh(y - 0.2, select, 0.4, label="selection (act)")
    axes.barh(y + 0.2, update, 0.4, label="update (observe, learn)")
    axes.set(yticks=y, yticklabels=list(costs), xlabel="ms a round, all replicas together", title=title)
    shown = np.concatenate([select, update])
    if shown.min() > 0 and shown.max() > 30 * shown.min():  # short bars would not be seen
        axes.set_xscale("log")
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    axes.legend(frameon=False, fontsize=8)
    return _png(figure)


def function(x: Array, curves: Mapping[str, Array], names: tuple[str, str], title: str) -> bytes:
    """Plain curves y(x), the lowest point of each marked.    (n,), label -> (n,)"""
    figure, (axes,) = _page(1)
    for label, y in curves.items():
        (line,) = axes.plot(x, y, linewidth=1.4, label=label)
        axes.plot(x[y.argmin()], y.min(), "o", color=line.get_color(), markersize=4)
    axes.set(xlabel=names[0], ylabel=names[1], title=title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return _png(figure)


def _curves(axes: Axes, curves: Mapping[str, Array]) -> None:
    styles = ["-", "--", "-.", ":"]
    for i, (label, curve) in enumerate(curves.items()):
        replicas, rounds = curve.shape
        at = np.unique(np.linspace(0, rounds - 1, min(rounds, _POINTS)).round().astype(int))
        mean, x = curve[:, at].mean(0), at + 1
        color = f"C{i % 10}"
        axes.plot(x, mean, styles[i % 4], color=color, linewidth=1.4, label=label)
        if replicas > 1:
            half = curve[:, at].std(0, ddof=1) * stdtrit(replicas - 1, 0.975) / math.sqrt(replicas)
            axes.fill_between(x, np.maximum(mean - half, 0), mean + half, color=color, alpha=0.12, linewidth=0)
    axes.set(xlabel="round", ylabel="cumulative regret, mean and 95% band")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def _half(values: Array) -> float:
    """Half of the 95% interval of a mean."""
    if len(values) < 2:
        return 0.0
    return float(values.std(ddof=1) * stdtrit(len(values) - 1, 0.975) / math.sqrt(len(values)))


def _page(parts: int) -> tuple[Figure, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 if parts == 1 else 10.0, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(1, parts, i + 1) for i in range(parts)]


def _png(figure: Figure) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()
