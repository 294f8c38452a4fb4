"""A module of the user's own as a stacked network, through `torch.func`."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from nbl.gradient import Gradient
from nbl.networks.base import Layer, Network, Weights
from nbl.rng import Streams
from nbl.types import NblError


class ModuleNetwork(Network):
    """Any `nn.Module` from (n, d) to (n,) or (n, 1), through `torch.func`.

    Args:
        factory: makes the module; called once a replica with that replica's seed set. A module instead of a factory
            gives every replica the same initial weights.
    """

    def __init__(self, factory: Callable[[], nn.Module] | nn.Module, replicas: int = 1, members: int = 1) -> None:
        make: Callable[[], nn.Module] = partial(deepcopy, factory) if isinstance(factory, nn.Module) else factory
        template = make().eval().requires_grad_(False)
        self.names = [(name, p.shape, p.numel()) for name, p in template.named_parameters()]
        if not self.names:
            raise NblError(f"net={type(template).__name__} has no parameters to learn.")
        super().__init__(replicas, members, sum(count for *_, count in self.names))
        self.make = make
        self.template = [template]  # in a list: its own weights are not state, but its buffers are:
        self.constants = [name for name, _ in template.named_buffers()]
        for index, buffer in enumerate(template.buffers()):
            self.register_buffer(f"constant_{index}", buffer.clone())
        self.layout = {**self.layout, **{f"constant_{index}": "" for index in range(len(self.constants))}}
        self.width, self.depth = 1, 2

    def unpack(self, theta: Tensor) -> Weights:
        return [Layer(theta, None)]

    def _call(self, theta: Tensor, x: Tensor) -> Tensor:
        """One network.    (p,), (n, d) -> (n,)"""
        parts = torch.split(theta, [count for *_, count in self.names])
        parameters = {name: part.view(shape) for (name, shape, _), part in zip(self.names, parts, strict=True)}
        constants = {name: getattr(self, f"constant_{index}") for index, name in enumerate(self.constants)}
        out: Tensor = torch.func.functional_call(self.template[0], {**parameters, **constants}, (x,))
        return out.reshape(x.shape[0])

    def draw(self, streams: Streams, phase: int) -> Tensor:
        drawn = []
        for seed in streams.seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed + 1_000_003 * phase)
                drawn.append(torch.cat([p.detach().flatten() for p in self.make().parameters()]))
        return torch.stack(drawn)

    def evaluate(self, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.vmap(self._call)(weights[0][0], x), x

    def pullback(self, weights: Weights, kept: Tensor, signal: Tensor, into: Weights) -> None:
        gradient = torch.func.grad(lambda theta, x, s: (self._call(theta, x) * s).sum())
        into[0][0].copy_(torch.vmap(gradient)(weights[0][0], kept, signal))

    def features(self, x: Tensor, theta: Tensor | None = None, last_layer: bool = False) -> Gradient:
        if last_layer:
            raise NblError("last_layer=True needs one of the library's own networks (net.kind=...).")
        theta = (self.theta if theta is None else theta)[:: self.members]
        gradient = torch.func.grad(lambda th, row: self._call(th, row.unsqueeze(0)).squeeze(0))
        return Gradient.explicit(torch.vmap(torch.vmap(gradient, (None, 0)))(theta, x))
