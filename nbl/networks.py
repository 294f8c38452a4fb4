"""Reward models: many small networks, stacked, one a replica (and a member), evaluated by the same kernels.

A network is a flat vector of parameters `theta` (B, p) and a way to evaluate it. B = replicas x members. Training
and confidence need three things of it: `evaluate`, `pullback` (gradient of a weighted sum of outputs) and
`features` (the gradient at each point). For an MLP all three are written in closed form; any other module goes
through `torch.func`.

    kind       f(x)                                                 start
    standard   ordinary MLP with biases                             N(0, (c_s / fan in)^(1/s)), last N(0, 2/m); biases 0
    zhou       sqrt(m) W_L relu(... W_1 x), x -> [x, x]/sqrt(2)      blockdiag(W, W), N(0, 4/m); (w, -w), N(0, 2/m)
    ntk        f_l = sqrt(c_s/m) W_l sigma_s(f_{l-1}), c_s = 2/(2s-1)!!  N(0, 1)
    feature    theta.phi(x), phi = sqrt(m) relu(W_{L-1} ... relu(W_1 x))  W N(0, 2/m), theta N(0, 1/D): phi^2 about 1
    mirrored   the same                                              blockdiag(W, W), N(0, 4/m); (w, -w), N(0, 2/m)

`zhou` is NeuralUCB's, NeuralTS's and Neural-ES's network; `ntk` is NeuralGCB's (eq. 2). Both subtract
f(x; theta_0), for `zhou` a zero that rounding would blur. `feature` and `mirrored` are NVLDB's (eq. 2 and, as printed,
eq. 3), with D numbers in phi. sigma_s(u) = max(0, u)^s. Depth L counts weight matrices:
L = 2 is one hidden layer. `standard` is He's initialisation for s = 1; for s > 1 the first hidden layer has the same
mean square on unit contexts, without which the ridge wins before the data do and the network dies.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from nbl.blocks import Blocks, Inputs, split
from nbl.gradient import Gradient, Pair
from nbl.history import one_by_one
from nbl.rng import Streams
from nbl.types import NblError

KINDS = ("standard", "zhou", "ntk", "feature", "mirrored")


class Layer(NamedTuple):
    """Views of a layer's parameters, (B, out, in) and (B, out, 1). Where inputs end in a 1, the matrix has the bias."""

    weight: Tensor
    bias: Tensor | None

    def put(self, weight: Tensor, signal: Tensor, factor: Tensor | None = None) -> None:
        """Write a gradient: that of the weights, and what came back to the outputs, (B, out, n).

        `factor` (B, out, 1), where not yet in them, is multiplied with both.
        """
        self.weight.copy_(weight if factor is None else weight.mul_(factor))
        if self.bias is not None:
            total = signal.sum(-1, keepdim=True)
            self.bias.copy_(total if factor is None else total.mul_(factor))


Weights = list[Layer]


class Network(nn.Module, ABC):
    """R x M networks of one shape.

    Attributes:
        theta, theta0: parameters now and at the start, (R * M, p).
        scale: features are gradients times this (1 / sqrt(m), or 1 where the paper has no m).
        centered: whether f(x; theta_0) is subtracted.
        slope: |features|^2 at the start, on unit contexts and at infinite width: L for ReLUs.
        closed: whether `evaluate` and `pullback` are in closed form, with nothing for autograd to do.
    """

    theta: nn.Parameter
    theta0: Tensor
    width: int
    depth: int
    scale: float = 1.0
    centered: bool = False
    closed: bool = False
    copies = 1  # evaluations an observation takes
    layout: Mapping[str, str] = {"theta": "B", "theta0": "B"}

    @property
    def slope(self) -> float:
        return float(self.depth)

    def __init__(self, replicas: int, members: int, size: int) -> None:
        super().__init__()
        self.replicas, self.members, self.size = replicas, members, size
        self.theta = nn.Parameter(torch.zeros(replicas * members, size), requires_grad=False)
        self.register_buffer("theta0", torch.zeros(replicas * members, size))

    @abstractmethod
    def unpack(self, theta: Tensor) -> Weights:
        """Views of flat parameters, in the shapes that `evaluate` uses; they follow theta.    (B, p)"""

    @abstractmethod
    def evaluate(self, weights: Weights, x: Tensor) -> tuple[Tensor, Any]:
        """Outputs, and what `pullback` needs.    (B, p) unpacked, (B, n, d) -> (B, n)"""

    @abstractmethod
    def pullback(self, weights: Weights, kept: Any, signal: Tensor, into: Weights) -> None:
        """Gradient in theta of sum_n signal_n f(x_n), written into unpacked parameters.    (B, p) unpacked, (B, n)

        What was kept may be overwritten: it serves once.
        """

    @abstractmethod
    def features(self, x: Tensor, theta: Tensor | None = None, last_layer: bool = False) -> Gradient:
        """Scaled gradients in theta at each point, of the first member.    (R, n, d) -> (R, n, p)"""

    @property
    def head(self) -> int:
        """How many of the parameters, the last ones, are the output layer's."""
        raise NblError(
            "this needs one of the library's own networks (net.kind=...): the last layer of another is unknown."
        )

    @abstractmethod
    def draw(self, streams: Streams, phase: int) -> Tensor:
        """Initial parameters, one set a replica.    -> (R, p)"""

    def prepare(self, x: Tensor, many: bool = False) -> Any:
        """What is fed to the first layer; `many` times in training.    (B, n, d) -> (B, n, d')"""
        return x

    def initialise(self, streams: Streams, phase: int) -> None:
        """Draw theta_0 anew; members share it."""
        self.theta0.copy_(self.draw(streams, phase).repeat_interleave(self.members, 0))
        self.theta.copy_(self.theta0)

    def forward(self, x: Tensor) -> Tensor:
        """f(x; theta).    (R, n, d) -> (R, n), or (R, M, n) in an ensemble"""
        x = self.prepare(self.spread(x))
        out = self.evaluate(self.unpack(self.theta), x)[0]
        if self.centered:
            out = out - self.evaluate(self.unpack(self.theta0), x)[0]
        return out if self.members == 1 else out.view(self.replicas, self.members, -1)

    def spread(self, x: Tensor) -> Tensor:
        """One copy a member.    (R, ...) -> (R * M, ...)"""
        return x if self.members == 1 else x.repeat_interleave(self.members, 0)


class MLP(Network):
    """Stacked multi-layer perceptrons, gradients in closed form.

    Args:
        dim: the length of a context, zeros included.
        kind: standard, zhou or ntk (see the table above).
        width: m, neurons in a hidden layer.
        depth: L, weight matrices; 2 is one hidden layer.
        power: s of the activation max(0, u)^s.
        phi: D, neurons in the last hidden layer of `feature` and `mirrored`; None is d.
        blocks: K where contexts are disjoint and come as (x, k): see `nbl.blocks`. The weights are the same.
    """

    closed = True

    def __init__(
        self,
        dim: int,
        replicas: int = 1,
        members: int = 1,
        *,
        kind: str = "standard",
        width: int = 50,
        depth: int = 2,
        power: int = 1,
        phi: int | None = None,
        blocks: int | None = None,
    ) -> None:
        if kind not in KINDS:
            raise NblError(f"net.kind={kind!r}: choose one of {', '.join(KINDS)}.")
        built = kind in ("feature", "mirrored")
        last = width if not built else dim if phi is None else phi  # neurons in the last hidden layer
        for name, value, least in (("width", width, 1), ("depth", depth, 2), ("power", power, 1), ("phi", last, 1)):
            if not isinstance(value, int) or value < least:
                raise NblError(f"net.{name}={value!r}: need a whole number, at least {least}.")
        if kind == "zhou" and width % 2:
            raise NblError(f"net.width={width}: the `zhou` network mirrors its neurons, so its width is even.")
        if phi is not None and not built:
            raise NblError(f"net.phi={phi}: only a `feature` or `mirrored` network has it, not kind={kind}.")
        if kind == "mirrored" and (width % 2 or dim % 2 or depth < 3):
            raise NblError(
                f"net.kind=mirrored (eq. 3) halves contexts and layers: it needs an even width (now {width}), contexts "
                f"of even length (now {dim}) and a depth of 3 or more (now {depth}). net.kind=feature needs none of it."
            )
        into = 2 * dim if kind == "zhou" else dim
        self.bias = kind == "standard"
        sizes = [into, *[width] * (depth - 2), last, 1]
        self.shapes = list(zip(sizes[1:], sizes[:-1], strict=True))  # (out, in) of each layer
        super().__init__(replicas, members, sum(o * (i + self.bias) for o, i in self.shapes))
        self.kind, self.width, self.depth, self.power, self.blocks = kind, width, depth, power, blocks
        self.scale = width**-0.5 if kind in ("standard", "zhou") else 1.0
        self.centered = kind in ("zhou", "ntk")
        self.c = 2.0 / math.prod(range(1, 2 * power, 2))  # c_s = 2 / (2s-1)!!
        inner = math.sqrt(self.c / width)
        self.gains = {
            "standard": [1.0] * depth,
            "zhou": [1.0] * (depth - 1) + [math.sqrt(width)],
            "ntk": [1.0] + [inner] * (depth - 1),
        }.get(kind, [1.0] * (depth - 2) + [math.sqrt(width), 1.0])

    @property
    def slope(self) -> float:
        s = self.power
        return sum((s * s / (2 * s - 1)) ** layer for layer in range(self.depth)) if self.kind == "ntk" else self.depth

    def prepare(self, x: Tensor, many: bool = False) -> Inputs | Blocks:
        k = None
        if self.blocks:
            x, k = split(x)
        x = torch.cat([x, x], -1) * 0.5**0.5 if self.kind == "zhou" else x
        if k is None or self.blocks is None:
            x = self._with_one(x)
            return Inputs(x, x.mT.contiguous() if many and self.depth == 2 else x.mT, many)
        return Blocks(x, k, self.blocks, 1 + (self.kind == "zhou"), many)

    def unpack(self, theta: Tensor) -> Weights:
        first, *others = self.matrices(theta)
        layers = [Layer(first, None) if self.blocks is None else self.apart(first)]
        return [*layers, *map(self.apart, others)]

    def matrices(self, theta: Tensor) -> list[Tensor]:
        """A layer is a matrix (out, in + bias): the bias is its last column."""
        parts = theta.split_with_sizes([o * (i + self.bias) for o, i in self.shapes], 1)
        return [part.view(-1, o, i + self.bias) for part, (o, i) in zip(parts, self.shapes, strict=True)]

    def apart(self, matrix: Tensor) -> Layer:
        return Layer(*matrix.split_with_sizes([matrix.shape[-1] - 1, 1], -1)) if self.bias else Layer(matrix, None)

    def draw(self, streams: Streams, phase: int) -> Tensor:
        theta = streams.normal("init", phase, (self.size,), self.theta0.device)
        layers = map(self.apart, self.matrices(theta))
        for layer, ((weight, bias), (o, i)) in enumerate(zip(layers, self.shapes, strict=True), 1):
            if bias is not None:
                weight *= math.sqrt(2.0 / i if layer == self.depth else (self.c / i) ** (1.0 / self.power))
                bias.zero_()
            elif self.kind in ("feature", "mirrored") and layer == self.depth:
                weight *= i**-0.5
            elif self.kind == "feature":
                weight *= math.sqrt(2.0 / self.width)
            elif (self.kind == "zhou" and layer < self.depth) or (self.kind == "mirrored" and layer < self.depth - 1):
                # blockdiag(W, W)
                weight *= math.sqrt(4.0 / self.width)
                weight[:, o // 2 :, i // 2 :] = weight[:, : o // 2, : i // 2]
                weight[:, o // 2 :, : i // 2] = weight[:, : o // 2, i // 2 :] = 0.0
            elif self.kind in ("zhou", "mirrored"):  # (w, -w)
                weight *= math.sqrt(2.0 / self.width)
                weight[..., i // 2 :] = -weight[..., : i // 2]
        return theta

    def evaluate(self, weights: Weights, x: Any) -> tuple[Tensor, list[Any]]:
        """Keeps of each hidden layer its inputs, max(0, z) and sigma_s(z), (B, m, n)."""
        kept: list[Any] = []  # not list[Any](): torch.compile cannot trace it
        h = cast(Tensor, None)
        for layer, (weight, bias) in enumerate(weights[:-1]):
            x = Inputs(h.mT, h) if layer else x
            z = x.times(weight, layer == self.depth - 2)
            if bias is not None:
                z.add_(bias)
            if self.gains[layer] != 1.0:
                z.mul_(self.gains[layer])
            rectified = z.relu_()
            h = rectified if self.power == 1 else rectified**self.power
            kept.append((x, rectified, h))
        weight, bias = weights[-1]
        out = torch.bmm(weight, h)
        if bias is not None:
            out.add_(bias)
        if self.gains[-1] != 1.0:
            out.mul_(self.gains[-1])
        return out.squeeze(1), kept

    def derivative(self, rectified: Tensor) -> Tensor:
        """sigma_s'(z), in the place of max(0, z): passes over a hidden layer are what a step costs beside products."""
        return rectified.sign_() if self.power == 1 else rectified.pow_(self.power - 1).mul_(float(self.power))

    def back(self, weight: Tensor, above: Tensor | None, rectified: Tensor, gain: float) -> Tensor:
        """What comes back to a hidden layer before its gain, from that of the layer above.    (B, o, n) -> (B, m, n)

        None above is one output's 1 at every point. It takes the place of max(0, z).
        """
        found = self.derivative(rectified)
        if above is None:
            found.mul_(weight.mT)
        elif above.shape[1] == 1:  # a column times a row needs no product
            found.mul_(weight.mT).mul_(above)
        else:
            found.mul_(torch.bmm(above.mT, weight).mT)
        return found if gain == 1.0 else found.mul_(gain)

    @property
    def head(self) -> int:
        return self.shapes[-1][1] + self.bias

    def pullback(self, weights: Weights, kept: list[Any], signal: Tensor, into: Weights) -> None:
        back = signal.unsqueeze(1)
        if self.gains[-1] != 1.0:
            back = back * self.gains[-1]
        into[-1].put(torch.bmm(back, kept[-1][2].mT), back)
        if self.depth == 2:  # the output's weights are factors of rows: fewer numbers in a gradient than in the layer
            (x, rectified, _), factor = kept[0], weights[1].weight.mT
            back = self.derivative(rectified).mul_(back)
            into[0].put(x.outer(back), back, factor if self.gains[0] == 1.0 else factor * self.gains[0])
            return
        for layer in range(self.depth - 2, -1, -1):
            x, rectified, _ = kept[layer]
            back = self.back(weights[layer + 1].weight, back, rectified, self.gains[layer])
            into[layer].put(x.outer(back), back)

    def features(self, x: Tensor, theta: Tensor | None = None, last_layer: bool = False) -> Gradient:
        theta, now = (self.theta, self.members == 1 and not self.centered) if theta is None else (theta, False)
        weights = self.unpack(theta if self.members == 1 else theta[:: self.members])
        out, kept = self.evaluate(weights, self.prepare(x))
        signal = self.gains[-1] * self.scale  # of the output: it does not depend on x
        last = self._with_one(kept[-1][2].mT) * signal
        if last_layer:
            return Gradient.explicit(last)
        inner = [self._with_one(h.mT.clone()) for *_, h in kept[:-1]]  # `back` overwrites them
        weight, back, signals = weights[-1].weight * signal, None, list[Tensor]()
        for layer in range(self.depth - 2, -1, -1):
            back = self.back(weight, back, kept[layer][1], self.gains[layer])
            signals.insert(0, back.mT)
            weight = weights[layer].weight
        first, block = kept[0][0], None
        pairs: list[Pair] = [(first.rows, signals[0])]
        if isinstance(first, Blocks):  # the biases are not in a block
            block, pairs = first.k, [*pairs, *([(signals[0], None)] if self.bias else [])]
        pairs += [*zip(inner, signals[1:], strict=True), (last, None)]
        found = Gradient(pairs, block, self.blocks)
        found.value = out if now else None
        return found

    def _with_one(self, a: Tensor) -> Tensor:
        return torch.constant_pad_nd(a, (0, 1), 1.0) if self.bias else a


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


class Pairs:
    """f(x) - f(y) as a network on pairs side by side: what a duel is trained on. The weights are the network's own."""

    copies = 2

    def __init__(self, net: Network) -> None:
        self.net, self.theta, self.theta0 = net, net.theta, net.theta0
        self.replicas, self.members = net.replicas, net.members
        self.width, self.depth, self.centered, self.closed = net.width, net.depth, net.centered, net.closed
        self.scale, self.slope, self.unpack = net.scale, net.slope, net.unpack

    def prepare(self, x: Tensor, many: bool = False) -> Any:
        """(B, n, 2 d) -> (B, 2 n, d')"""
        return self.net.prepare(one_by_one(x), many)

    def evaluate(self, weights: Weights, x: Tensor) -> tuple[Tensor, Any]:
        """(B, p) unpacked, (B, 2 n, d') -> (B, n)"""
        out, kept = self.net.evaluate(weights, x)
        return out[:, ::2] - out[:, 1::2], kept

    def pullback(self, weights: Weights, kept: Any, signal: Tensor, into: Weights) -> None:
        """(B, p) unpacked, (B, n)"""
        self.net.pullback(weights, kept, torch.stack([signal, -signal], -1).flatten(1), into)

    def __call__(self, x: Tensor) -> Tensor:
        """(R, n, 2 d) -> (R, n)"""
        out: Tensor = self.net(one_by_one(x))
        return out[..., ::2] - out[..., 1::2]


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
