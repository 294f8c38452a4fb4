"""Values as users give them: numpy's and torch's numbers, lists, arrays."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nbl.types import NblError


def whole(value: Any, least: int | None = None) -> bool:
    """Whether it is a whole number (numpy's count), and no less than `least`."""
    return isinstance(value, Integral) and not isinstance(value, bool) and (least is None or int(value) >= least)


def simple(value: Any) -> Any:
    """Numbers of numpy and torch as Python's, in dicts and lists too."""
    if isinstance(value, dict):
        return {name: simple(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [simple(v) for v in value]
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.ndim == 0):
        return value.item()
    return value


def plain(value: Any) -> bool:
    """Whether a checkpoint's safe loader takes it: numbers, strings, None, and dicts and lists of them."""
    if isinstance(value, dict):
        return all(isinstance(k, str) and plain(v) for k, v in value.items())
    if isinstance(value, list | tuple):
        return all(map(plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def as_numbers(value: Any, what: str) -> Tensor:
    """Whatever holds numbers, as a tensor."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise NblError(
            f"{what}: a {type(value).__name__} is not numbers ({error}). Give a tensor, an array or a list."
        ) from error
    if tensor.is_complex():
        raise NblError(f"{what}: complex numbers have no order; give real ones.")
    return tensor


def finite(x: Tensor) -> bool:
    """Whether all numbers are: their sum is the quick way to see it, unless it overflows."""
    return math.isfinite(x.sum().item()) or bool(x.isfinite().all())


def known(x: Tensor) -> bool:
    """Whether none is a NaN, in the same way."""
    return not math.isnan(x.sum().item()) or not bool(x.isnan().any())
