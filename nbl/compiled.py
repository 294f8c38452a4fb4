"""`fit.compile=true`: a step of the inner training as one kernel of torch.compile's, where there is a compiler.

The sizes that change from round to round (observations, networks in a chunk) are unknowns of the kernel: it is made
once for a shape of network, and once more where one of them is 1. What cannot be compiled is said once, and training
goes on without.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

T = TypeVar("T")
KERNELS = 64  # torch's limit is 8 for a function, which a sweep over widths in one process passes


@cache
def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """The function as one graph: it compiles as a whole before any of it runs, or not at all."""
    known = inspect.signature(torch.compile).parameters
    limit: dict[str, Any] = {"recompile_limit": KERNELS} if "recompile_limit" in known else {}  # torch 2.6 has none
    made: Callable[..., None] = torch.compile(function, fullgraph=True, dynamic=True, **limit)
    return made


def why(error: Exception) -> str:
    """An error of the compiler in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = lines[0] if lines else type(error).__name__
    return told if len(told) <= 200 else told[:197] + "..."


def warn(error: Exception) -> None:
    warnings.warn(
        f"fit.compile=true has no effect: torch.compile failed ({why(error)}). Training goes on without it; the "
        "numbers are the same.",
        stacklevel=2,
    )
