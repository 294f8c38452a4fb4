"""Confidence matrices: U = lam I + sum_i w_i g_i g_i^T, one a replica, and the width sqrt(g^T U^-1 g).

Five forms behind one interface (base.py); an algorithm cannot tell which one it was given. Two more: nbl/levels.py.

    Dual      exact, through the t x t kernel of what was played; never forms a p-vector    (dual.py)
    Auto      Dual while it is the cheaper, then Full
    Full      exact, p x p, Sherman-Morrison    (explicit.py)
    Diagonal  the papers' approximation: only U's diagonal
    Blockwise exact, for disjoint vectors: a Full for each block

Everything here is float64, whatever the network's precision, and autocast is off.
"""

from __future__ import annotations

from nbl.design.base import Design, DesignError, exact, root
from nbl.design.dual import Auto, Dual
from nbl.design.explicit import Blockwise, Diagonal, Full, matrix
from nbl.types import NblError

__all__ = [
    "KINDS",
    "Auto",
    "Blockwise",
    "Design",
    "DesignError",
    "Diagonal",
    "Dual",
    "Full",
    "build",
    "exact",
    "matrix",
    "root",
]

KINDS = ("auto", "dual", "full", "diagonal")


def build(kind: str, replicas: int, size: int, lam: float, horizon: int | None = None) -> Design:
    """A confidence matrix by name."""
    if kind == "auto":
        return Auto(replicas, size, lam, horizon)
    kinds: dict[str, type[Design]] = {"dual": Dual, "full": Full, "diagonal": Diagonal}
    if kind not in kinds:
        raise NblError(f"design={kind!r}: choose one of {', '.join(KINDS)}.")
    return kinds[kind](replicas, size, lam)
