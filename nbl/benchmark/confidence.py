"""`act` and `observe` with exact confidence: against p x p matrices, against the diagonal, against memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from nbl.benchmark.measure import Job, Player, Row, back_all, in_turn, integral
from nbl.benchmark.problems import neural
from nbl.benchmark.textbook import Textbook

WHAT = "act + observe, exact"


def textbook(dims: Sequence[int] = (19, 43), times: Sequence[int] = (1, 100, 300, 600, 1000)) -> Iterator[Row]:
    """m = 100, K = 4, p = 100 d + 201. The textbook's cost does not depend on t; ours is taken over a whole run too."""
    for dim, target in zip(dims, (30.0, 100.0), strict=False):
        books = {str(dtype)[6:]: Textbook(dim, 100, dtype=dtype) for dtype in (torch.float64, torch.float32)}
        players = {t: neural(dim, design="dual").until(t, every=None) for t in times}
        mine = {str(t): player.verbs()["both"] for t, player in players.items()}
        both = {name: _round(book, players[times[0]]) for name, book in books.items()}
        taken = in_turn({**mine, **both}, 5, 0.1, most=20, between=back_all(list(players.values())))
        run = integral({t: taken[str(t)] for t in times}) / times[-1]
        size = books["float64"].size
        for case, seconds in ((f"mean of t<={times[-1]}", run), (f"t={times[-1]}", taken[str(times[-1])])):
            for name in books:
                goal = (target, target / 6) if name == "float64" and case.startswith("mean") else (torch.nan,) * 2
                ratio = taken[name] / seconds
                yield Row(WHAT, f"p={size}, {case}", seconds, f"textbook, p x p in {name}", ratio, *goal)
        first = taken[str(times[0])]
        yield Row(WHAT, f"p={size}, t={times[0]}: calls alone", first, "textbook, float64", taken["float64"] / first)


def diagonal(times: Sequence[int] = (200, 1000)) -> Iterator[Row]:
    """The exact width costs O(t^2), the diagonal O(p)."""
    for t in times:
        players = {design: neural(19, design=design).until(t, every=None) for design in ("dual", "diagonal")}
        jobs = {design: player.verbs()["both"] for design, player in players.items()}
        taken = in_turn(jobs, 5, 0.1, most=20, between=back_all(list(players.values())))
        target = 1 / 3 if t <= 200 else 1 / 15
        ratio = taken["diagonal"] / taken["dual"]
        yield Row(WHAT, f"p=2101, t={t}", taken["dual"], "diagonal", ratio, target, target / 1.5)


def _round(book: Textbook, player: Player) -> Job:
    contexts = player.environment.contexts(1)[0].float()

    def both() -> None:
        arm = book.act(contexts)
        book.observe(contexts[arm], torch.zeros(()))

    return both
