"""Pictures of a run, drawn without a display."""

from __future__ import annotations

import io
import math

import torch
from scipy.special import stdtrit
from torch import Tensor

_LINES = 12  # replicas drawn one by one up to this many
_POINTS = 2000  # points on a curve: more cannot be seen


def cumulative_curve(cumulative: Tensor, title: str, what: str = "regret", first: int = 1) -> bytes:
    """Mean cumulative regret (or reward) with its 95% band, as a PNG.    (R, T)"""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    replicas, rounds = cumulative.shape
    at = torch.linspace(0, max(0, rounds - 1), min(rounds, _POINTS)).round().long()
    curves, x = cumulative[:, at].double(), (at + first).numpy()
    mean = curves.mean(0)

    figure = Figure(figsize=(6.4, 4.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if 1 < replicas <= _LINES:
        axes.plot(x, curves.T.numpy(), color="tab:blue", linewidth=0.6, alpha=0.35)
    if replicas > 1:
        half = curves.std(0) * stdtrit(replicas - 1, 0.975) / math.sqrt(replicas)
        low, high = (mean - half).numpy(), (mean + half).numpy()
        axes.fill_between(x, low, high, alpha=0.25, linewidth=0, label="95% interval")
    axes.plot(x, mean.numpy(), color="tab:blue", linewidth=1.8, label=f"mean of {replicas}" if replicas > 1 else None)
    axes.set(xlabel="round", ylabel=f"cumulative {what}", title=title)
    axes.grid(alpha=0.3)
    if replicas > 1:
        axes.legend(loc="upper left", frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()
