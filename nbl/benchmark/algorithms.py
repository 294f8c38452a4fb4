"""Rounds a second of six algorithms, at their papers' settings: the recipes `*_paper`, without a Trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nbl.benchmark.measure import Row, back_all, in_turn
from nbl.benchmark.problems import recipe

PAPERS: Mapping[str, tuple[str, ...]] = {
    "NeuralUCB": ("recipe=neural_ucb", "algorithm=neural_ucb_paper"),
    "NeuralTS": ("recipe=neural_ts", "algorithm=neural_ts_paper"),
    "NeuralGCB": ("recipe=neural_gcb", "algorithm=neural_gcb_paper"),
    "Neural-ES": ("recipe=neural_es", "algorithm=neural_es_paper"),
    "NeuralLog-UCB-2": ("recipe=neural_log_ucb_2", "algorithm=neural_log_ucb_2_paper"),
    "NVLDB-UCB-OSYM": ("recipe=nvldb_ucb_osym", "algorithm=nvldb_paper", "algorithm.symmetry=osym", "env.dim=6"),
}


def papers(names: Sequence[str] = tuple(PAPERS), t: int = 100, replicas: Sequence[int] = (1, 10, 50)) -> Iterator[Row]:
    """A round at t = 100, in which every network is retrained."""
    for name in names:
        players = {R: recipe(*PAPERS[name], replicas=R).until(t, every=10) for R in replicas}
        jobs = {str(R): player.play for R, player in players.items()}
        taken = in_turn(jobs, 3, 0.1, most=5, between=back_all(list(players.values())))
        alone = taken[str(replicas[0])] / replicas[0]
        for R in replicas:
            seconds = taken[str(R)]
            ratio, note = R * alone / seconds, f"{R / seconds:.0f} rounds/s"
            yield Row(name, f"t={t}, R={R}", seconds, f"{R} single runs", ratio, note=note)
