"""The pictures of a suite, one a panel, as PNG and drawn without a display."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
_POINTS = 500  # points on a curve: more cannot be seen
_INSIDE = 14  # lines of a legend among the curves
_COLUMN = 24  # lines of a legend beside them, a column


def regret(
    curves: Mapping[str, Array], title: str, what: str = "regret", level: float = 0.95, name: str | None = None
) -> bytes:
    """Mean cumulative regret (or reward) of each algorithm with its 95% band; `name` is another name of the axis.

    label -> (R, T)
    """
    figure, (axes,) = _page(1)
    _curves(axes, curves, what, level)
    axes.set_title(title)
    if name is not None:
        axes.set_ylabel(name)
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


def grid(means: Array, axes: Mapping[str, Sequence[Any]], title: str, what: str = "regret") -> bytes:
    """Mean regret (or reward) after the last round over two values that were changed.    (n, m)"""
    figure, (plot,) = _page(1)
    (down, rows), (across, columns) = axes.items()
    image = plot.imshow(means, aspect="auto", cmap="viridis_r" if what == "regret" else "viridis")
    plot.set(xticks=range(len(columns)), xticklabels=columns, yticks=range(len(rows)), yticklabels=rows)
    plot.set(xlabel=across, ylabel=down, title=title)
    for (i, j), value in np.ndenumerate(means):
        plot.text(j, i, f"{value:.3g}", ha="center", va="center", color="white", fontsize=8)
    figure.colorbar(image, label=f"{what} after the last round")
    return _png(figure)


def sweeps(finals: Mapping[str, Sequence[Array]], values: Sequence[float], name: str, title: str) -> bytes:
    """The final regret of several algorithms against the value that was changed.    label -> one (R,) a value"""
    figure, (axes,) = _page(1)
    x = np.arange(len(values))
    for label, parts in finals.items():
        axes.errorbar(x, [v.mean() for v in parts], [_half(v) for v in parts], fmt="o-", capsize=3, label=label)
    axes.set(xlabel=name, ylabel="regret after the last round, 95% interval", title=title)
    axes.set(xticks=x, xticklabels=[str(v) for v in values])
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    _legend(axes)
    return _png(figure)


def times(costs: Mapping[str, tuple[float, float]], title: str) -> bytes:
    """What a round costs: selection and update, in milliseconds of process time.    label -> (select, update)"""
    figure, (axes,) = _page(1)
    y = np.arange(len(costs))
    figure.set_figheight(max(figure.get_figheight(), 0.2 * len(costs)))
    select, update = (np.array([cost[i] for cost in costs.values()]) for i in (0, 1))
    axes.barh(y - 0.2, select, 0.4, label="selection (act)")
    axes.barh(y + 0.2, update, 0.4, label="update (observe, learn)")
    axes.set(yticks=y, yticklabels=list(costs), xlabel="ms a round, all replicas together", title=title)
    shown = np.concatenate([select, update])
    if shown.min() > 0 and shown.max() > 30 * shown.min():  # short bars would not be seen
        axes.set_xscale("log")
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    _legend(axes)
    return _png(figure)


def cost(found: Mapping[str, tuple[float, Array]], title: str) -> bytes:
    """Regret against time, a point a replica.    label -> (seconds of the run, (R,))"""
    figure, (axes,) = _page(1)
    for i, (label, (seconds, regret)) in enumerate(found.items()):
        axes.plot(np.full(len(regret), seconds), regret, "oD^sv<>P"[i % 8], markersize=4, alpha=0.6, label=label)
    axes.set(xlabel="process time of the algorithm, all replicas together, s", ylabel="cumulative regret", title=title)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    _legend(axes)
    return _png(figure)


def function(x: Array, curves: Mapping[str, Array], names: tuple[str, str], title: str, log: bool = False) -> bytes:
    """Plain curves y(x), the lowest point of each marked, or on two logarithmic axes.    (n,), label -> (n,)"""
    figure, (axes,) = _page(1)
    for label, y in curves.items():
        (line,) = axes.plot(x, y, "o-" if log else "-", linewidth=1.4, markersize=4, label=label)
        if not log:
            axes.plot(x[y.argmin()], y.min(), "o", color=line.get_color(), markersize=4)
    if log:
        axes.set(xscale="log", yscale="log")
    axes.set(xlabel=names[0], ylabel=names[1], title=title)
    axes.grid(alpha=0.3)
    _legend(axes)
    return _png(figure)


def _curves(axes: Axes, curves: Mapping[str, Array], what: str = "regret", level: float = 0.95) -> None:
    styles = ["-", "--", "-.", ":"]
    for i, (label, curve) in enumerate(curves.items()):
        replicas, rounds = curve.shape
        at = np.unique(np.linspace(0, rounds - 1, min(rounds, _POINTS)).round().astype(int))
        mean, x = curve[:, at].mean(0), at + 1
        color = f"C{i % 10}"
        axes.plot(x, mean, styles[i % 4], color=color, linewidth=1.4, label=label)
        if replicas > 1:
            half = curve[:, at].std(0, ddof=1) * stdtrit(replicas - 1, 0.5 + level / 2) / math.sqrt(replicas)
            axes.fill_between(x, np.maximum(mean - half, 0), mean + half, color=color, alpha=0.12, linewidth=0)
    axes.set(xlabel="round", ylabel=f"cumulative {what}, mean and {level:.0%} band")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    _legend(axes, "upper left")


def _legend(axes: Axes, place: Literal["best", "upper left"] = "best") -> None:
    """Among the curves where there is room, beside them where they are many."""
    count = len(axes.get_legend_handles_labels()[1])
    if count <= _INSIDE:
        axes.legend(loc=place, frameon=False, fontsize=8)
        return
    columns = math.ceil(count / _COLUMN)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figwidth(figure.get_figwidth() + 2.6 * columns)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7, ncols=columns)


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
