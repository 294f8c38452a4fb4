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

    Beside it what the products of these very shapes take, alone: a step cannot be faster than that.
    """
    square = torch.randn(1, SIDE, SIDE)
    for width in widths:
        for t in times:
            for R in replicas:
                policy = _filled(width, t, R)
                data = policy.history.data()
                step = {"train": partial(policy.fit, policy.net, data, t)}
                shapes = _products(data.inputs, width)
                taken = in_turn({**step, "square": lambda: torch.bmm(square, square), "shapes": shapes}, 5)
                flops = R * t * width * (4 * 20 + 4) * STEPS  # in and out of both layers
                rate, peak = flops / taken["train"], 2 * SIDE**3 / taken["square"]
                floor = taken["shapes"] * STEPS * R
                yield Row(
                    "a training step",
                    f"m={width}, t={t}, R={R}",
                    taken["train"] / STEPS,
                    f"products of {SIDE} x {SIDE}",
                    rate / peak,
                    0.30,
                    0.12,
                    f"{rate / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s; products of its shapes alone: "
                    f"{floor / taken['train']:.2f} of its time",
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


def _products(inputs: torch.Tensor, width: int) -> Job:
    """The four products of a step of one network."""
    x = inputs[:1]
    hidden, out = torch.randn(1, x.shape[1], width), torch.randn(1, x.shape[1], 1)
    first, last = torch.randn(1, width, x.shape[2]), torch.randn(1, 1, width)

    def products() -> None:
        torch.bmm(x, first.mT)
        torch.bmm(hidden, last.mT)
        torch.bmm(out.mT, hidden)
        torch.bmm(hidden.mT, x)

    return products
