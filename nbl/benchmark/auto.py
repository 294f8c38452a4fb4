"""design=auto with a known horizon, over a whole run: against Dual alone and Full alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nbl.benchmark.measure import Row, back_all, in_turn, integral
from nbl.benchmark.problems import neural

Sizes = Sequence[tuple[int, int]]  # m, T
SIZES: Sizes = ((20, 300), (20, 3000), (50, 1000))


def auto(sizes: Sizes = SIZES) -> Iterator[Row]:
    """`act` and `observe`; rounds are timed along the run and summed, the move from Dual to Full in between left out."""
    for width, horizon in sizes:
        players = {d: neural(width=width, design=d, horizon=horizon) for d in ("auto", "dual", "full")}
        seconds: dict[str, dict[int, float]] = {name: {} for name in players}
        for t in (1, *(horizon * part // 6 for part in range(1, 7))):
            for player in players.values():
                player.until(t, every=None)
            jobs = {name: player.verbs()["both"] for name, player in players.items()}
            most = 1 if t == horizon else 20
            taken = in_turn(jobs, 5, 0.05, most=most, between=back_all(list(players.values())))
            for name in players:
                seconds[name][t] = taken[name]
            back_all(list(players.values()))()
        total = {name: integral(found) for name, found in seconds.items()}
        better = min(("dual", "full"), key=lambda name: total[name])
        size = width * 21 + width + 1
        yield Row(
            "act + observe, design=auto",
            f"p={size}, T={horizon}, a round",
            total["auto"] / horizon,
            f"{better}, the better of dual and full",
            total[better] / total["auto"],
            1 / 1.2,
            1 / 1.6,
        )
