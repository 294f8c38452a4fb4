"""Replicas advance together: 50 against 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from nbl.benchmark.limit import STEPS, by_hand
from nbl.benchmark.measure import Job, Row, back_all, in_turn
from nbl.benchmark.problems import neural

Sizes = Sequence[tuple[int, int, str]]  # m, t, design
SIZES: Sizes = ((20, 50, "auto"), (20, 200, "auto"), (100, 200, "auto"), (100, 1000, "diagonal"), (100, 1000, "dual"))


def stacked(sizes: Sizes = SIZES, count: int = 50) -> Iterator[Row]:
    """A round with 100 steps of gradient descent. `overhead-bound` is m = 20, t <= 200; beside it what the many would
    take at least whose steps were written out by hand: a round of one is mostly calls, a round of many is not.
    """
    for width, t, design in sizes:
        players = [neural(width=width, replicas=R, design=design).until(t, every=None) for R in (1, count)]
        jobs: dict[str, Job] = {"one": players[0].play, "many": players[1].play}
        if width == 20:
            jobs["both"] = players[1].verbs()["both"]
            jobs["step"] = by_hand(torch.randn(count, t, 20), width)["step"]
        taken = in_turn(jobs, 3, 0.1, most=10, between=back_all(players))
        ratio, case = taken["one"] / taken["many"], f"m={width}, t={t}, {design}, R={count}"
        if width == 20:
            least = taken["both"] + STEPS * taken["step"]
            note = f"{1 / ratio:.1f} times one's; {least / taken['one']:.1f} times with steps by hand"
            yield Row("a round", case, taken["many"], "1 replica", ratio, 1 / 10, 1 / 25, note)
        yield Row("a round", case, taken["many"], f"{count} single runs", count * ratio, 1 / 1.1, 1 / 1.6)
