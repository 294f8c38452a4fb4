"""Neural contextual bandits on PyTorch Lightning.

import nbl
from nbl.algorithms import NeuralUCB
from nbl.envs import ZhouH1

rounds = nbl.fit(NeuralUCB(dim=20, arms=4, replicas=5), ZhouH1(replicas=5), horizon=500)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["BanditLoop", "BanditModule", "Decision", "Environment", "Feedback", "NblError", "Round", "fit", "load"]

if TYPE_CHECKING:
    from nbl.checkpoint import load
    from nbl.envs.base import Environment
    from nbl.loop import BanditLoop
    from nbl.module import BanditModule
    from nbl.run import fit
    from nbl.types import Decision, Feedback, NblError, Round

_WHERE = {
    "BanditLoop": "nbl.loop",
    "BanditModule": "nbl.module",
    "Decision": "nbl.types",
    "Environment": "nbl.envs.base",
    "Feedback": "nbl.types",
    "NblError": "nbl.types",
    "Round": "nbl.types",
    "fit": "nbl.run",
    "load": "nbl.checkpoint",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `nbl-train --help` does not wait for torch."""
    if name not in _WHERE:
        raise AttributeError(f"module 'nbl' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)
