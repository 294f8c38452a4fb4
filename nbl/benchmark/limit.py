"""Against the machine's limit: the rate of matrix products for the inner training, memory's for the confidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from nbl.algorithms import NeuralUCB
from nbl.benchmark.measure import Job, Player, Row, back_all, in_turn
from nbl.benchmark.problems import neural
from nbl.inner import Fit

STEPS = 100
SIDE = 512  # of the square matrices whose product is the measure


def training(
    widths: Sequence[int] = (100,), times: Sequence[int] = (1000,), replicas: Sequence[int] = (1, 20)
) -> Iterator[Row]:
    """Multiplications and additions of the products in a step, over its time, as a share of a large product's rate.

    Beside it the most that could be reached with the products of these very shapes and nothing else (the inner
    dimension of the first is d = 20), with the passes over the hidden layer that must come between them, and by a step
    written out by hand.
    """
    square = torch.randn(1, SIDE, SIDE)
    for width in widths:
        for t in times:
            for R in replicas:
                policy = _filled(width, t, R)
                data = policy.history.data()
                step = {"train": partial(policy.fit, policy.net, data, t)}
                least = by_hand(data.inputs[:1], width)
                taken = in_turn({**step, "square": lambda: torch.bmm(square, square), **least}, 5)
                flops = R * t * width * (4 * 20 + 4) * STEPS  # in and out of both layers
                rate, peak = flops / taken["train"], 2 * SIDE**3 / taken["square"]
                most = [flops / (taken[name] * STEPS * R) / peak for name in least]
                yield Row(
                    "a training step",
                    f"m={width}, t={t}, R={R}",
                    taken["train"] / STEPS,
                    f"products of {SIDE} x {SIDE}",
                    rate / peak,
                    0.30,
                    0.12,
                    f"{rate / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s; its products alone would reach {most[0]:.2f}, with "
                    f"the passes between them {most[1]:.2f}, a step by hand {most[2]:.2f}",
                )


def memory(times: Sequence[int] = (1000, 2000)) -> Iterator[Row]:
    """`act` and `observe` read the triangle L^-1 once and twice: bytes over time, against reading alone."""
    for t in times:
        player = neural(design="dual").until(t, every=None)
        source = torch.randn(4_000_000, dtype=torch.float64)
        jobs: dict[str, Job] = {"both": player.verbs()["both"], "read": partial(torch.sum, source)}
        taken = in_turn(jobs, 5, most=20, between=back_all([player]))
        read, most = 3 * t * t / 2 * 8 / taken["both"], source.nbytes / taken["read"]
        note = f"{read / 1e9:.1f} of {most / 1e9:.1f} GB/s"
        yield Row("act + observe, exact", f"t={t}, K=4", taken["both"], "reading memory", read / most, note=note)


def _filled(width: int, t: int, replicas: int) -> NeuralUCB:
    """A policy with t rounds of history and no confidence."""
    player: Player = neural(width=width, replicas=replicas)
    policy = player.policy
    assert isinstance(policy, NeuralUCB) and isinstance(policy.fit, Fit)
    contexts = torch.randn(replicas, t, 1, 20) / 20**0.5
    arms = torch.zeros(replicas, t, dtype=torch.int64)
    policy.history.append(contexts, arms, torch.randn(replicas, 1, t), torch.ones(replicas, t))
    return policy


def by_hand(x: torch.Tensor, width: int) -> dict[str, Job]:
    """What a step of one hidden layer cannot do without: four products, the passes over the hidden layer between them,
    and the small calls around them. `step` is a step by hand, as short as torch allows, without the first layer's bias.

    Args:
        x: contexts, (B, n, d), of B networks.
        width: m.
    """
    B, n, d = x.shape
    x, columns, y = x.contiguous(), x.mT.contiguous(), torch.randn(B, 1, n)
    weight, size = torch.full((B, 1, n), 1e-3), width * d + width + 1
    theta, grad = torch.randn(B, size) / n, torch.randn(B, size)

    def layers(flat: torch.Tensor) -> list[torch.Tensor]:
        first, last, bias = torch.split(flat, [width * d, width, 1], 1)
        return [first.view(B, width, d), last.view(B, 1, width), bias.view(B, 1, 1)]

    (first, last, bias), into = layers(theta), layers(grad)
    hidden, out = torch.randn(B, width, n), torch.randn(B, 1, n)
    ridge, rate = torch.tensor(1e-3), torch.full((B, 1), 1e-9)

    def products() -> None:
        torch.bmm(first, columns)
        torch.bmm(last, hidden)
        torch.bmm(out, hidden.mT)
        torch.bmm(hidden, x)

    def passes() -> None:
        products()
        hidden.relu_()
        hidden.sign_().mul_(out)

    def step() -> None:
        h = torch.bmm(first, columns).relu_()
        signal = torch.bmm(last, h).add_(bias).sub_(y).mul_(weight)
        into[1].copy_(torch.bmm(signal, h.mT))
        into[2].copy_(signal.sum(-1, keepdim=True))
        into[0].copy_(torch.bmm(h.sign_().mul_(signal), x).mul_(last.mT))
        theta.addcmul_(grad.addcmul_(theta, ridge), rate, value=-1.0)

    return {job.__name__: torch.inference_mode()(job) for job in (products, passes, step)}
