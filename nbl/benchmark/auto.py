"""design=auto with a known horizon, over a whole run: against Dual alone and Full alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from nbl.benchmark.measure import Player, Row
from nbl.benchmark.problems import neural

Sizes = Sequence[tuple[int, int]]  # m, T
SIZES: Sizes = ((20, 300), (20, 3000), (50, 1000))
SLICES = 10


def auto(sizes: Sizes = SIZES, repeats: int = 2) -> Iterator[Row]:
    """`act` and `observe` of whole runs, played in turn slice by slice; the move from Dual to Full is in them."""
    for width, horizon in sizes:
        least = {name: [float("inf")] * SLICES for name in ("auto", "dual", "full")}
        for _ in range(repeats):
            players = {name: neural(width=width, design=name, horizon=horizon) for name in least}
            for part in range(SLICES):
                for name, player in players.items():
                    least[name][part] = min(least[name][part], _play(player, horizon * (part + 1) // SLICES))
        total = {name: sum(parts) for name, parts in least.items()}
        better = min(("dual", "full"), key=lambda name: total[name])
        case = f"p={22 * width + 1}, T={horizon}, a round"
        against, ratio = f"{better}, the better of dual and full", total[better] / total["auto"]
        yield Row("act + observe, design=auto", case, total["auto"] / horizon, against, ratio, 1 / 1.2, 1 / 1.6)


def _play(player: Player, until: int) -> float:
    """Seconds of `act` and `observe` up to a round."""
    taken = 0.0
    while player.t < until:
        player.t += 1
        contexts = player.environment.contexts(player.t)
        begun = time.process_time()
        decision = player.policy.act(contexts)
        taken += time.process_time() - begun
        feedback = player.environment.pull(decision.arms)
        begun = time.process_time()
        player.policy.observe(contexts, decision, feedback)
        taken += time.process_time() - begun
    return taken
