"""The columns of a log, read and checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nbl.envs import tables
from nbl.envs.columns import Array, Letters, from_object
from nbl.envs.tables import Hub
from nbl.types import NblError


def read(
    name: str | None, path: Any, hub: Hub | None, data: Any, target: str, origin: str | None
) -> tuple[str, dict[str, Array | Letters]]:
    """A table's name and columns, all of one length and at least one row."""
    if data is not None:
        source, columns = name or type(data).__name__, from_object(data)
    else:
        source, columns, _ = tables.find(name, path, hub, target, origin)
    lengths = {key: len(c.codes if isinstance(c, Letters) else c) for key, c in columns.items()}
    if len(set(lengths.values())) != 1 or not min(lengths.values(), default=0):
        raise NblError(f"{source}: a log has one row an event, in columns of one length: {lengths}.")
    return source, columns


def need(columns: dict[str, Array | Letters], name: str, source: str) -> None:
    if name not in columns:
        advice = "env.propensity=null where it is not known" if name == "propensity" else "env.<which>=NAME"
        raise NblError(f"{source}: no column {name!r}; there are {', '.join(list(columns)[:40])}. Say {advice}.")


def numbers(column: Array | Letters, name: str, source: str) -> Tensor:
    """A column of finite numbers.    -> (N,)"""
    if isinstance(column, Letters) or column.ndim != 1 or not np.isfinite(column.astype(float)).all():
        raise NblError(f"{source}: column {name!r} must be finite numbers, one an event.")
    return torch.from_numpy(column.astype(np.float64))


def check_propensity(propensity: Tensor, source: str = "the log") -> Tensor:
    """Probabilities above 0: an event that could not have been logged says nothing.    (N,)"""
    bad = ~((propensity > 0) & (propensity <= 1))
    if bool(bad.any()):
        raise NblError(
            f"{source}: {int(bad.sum())} of {len(bad)} propensities are not in (0, 1]; the first is "
            f"{float(propensity[bad][0]):g}. Mend them, leave those events out, or say propensity=null "
            "and name the column in `drop` (else it is taken for context, and tells what was logged)."
        )
    return propensity


def log_scaled(values: Array) -> Array:
    """log(1 + v), to [-1, 1]; a constant becomes -1."""
    logs = np.log1p(values)
    top = float(logs.max())
    return 2 * logs / top - 1 if top > 0 and math.isfinite(top) else np.full_like(logs, -1.0)
