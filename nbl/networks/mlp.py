"""Stacked multi-layer perceptrons: the papers' networks, with gradients in closed form.

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
from typing import Any, cast

import torch
from torch import Tensor

from nbl.blocks import Blocks, Inputs, split
from nbl.gradient import Gradient, Pair
from nbl.networks.base import Layer, Network, Weights
from nbl.rng import Streams
from nbl.types import NblError

KINDS = ("standard", "zhou", "ntk", "feature", "mirrored")


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
