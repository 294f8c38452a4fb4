"""Reward models: many small networks, stacked, one a replica (and a member), evaluated by the same kernels.

A network is a flat vector of parameters `theta` (B, p) and a way to evaluate it. B = replicas x members. Training
and confidence need three things of it (base.py): `evaluate`, `pullback` (gradient of a weighted sum of outputs) and
`features` (the gradient at each point). For an MLP all three are written in closed form (mlp.py: the papers' networks);
any other module goes through `torch.func` (own.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from nbl.networks.base import Layer, Network, Pairs, Weights
from nbl.networks.mlp import KINDS, MLP
from nbl.networks.own import ModuleNetwork
from nbl.types import NblError

__all__ = ["KINDS", "MLP", "Layer", "ModuleNetwork", "Net", "Network", "Pairs", "Weights", "build"]

Net = Mapping[str, Any] | nn.Module | Callable[[], nn.Module] | None


def build(net: Net, dim: int, replicas: int, members: int = 1, blocks: int | None = None) -> Network:
    """`net={"kind": "standard", "width": 50}`, a module, or a function that makes one."""
    if net is not None and not isinstance(net, Mapping):
        return ModuleNetwork(net, replicas, members)
    options = net or {}
    known = ("kind", "width", "depth", "power", "phi")
    if unknown := sorted(set(options) - set(known)):
        raise NblError(f"net has no option {', '.join(unknown)}; it has {', '.join(known)}.")
    return MLP(dim, replicas, members, blocks=blocks, **options)
