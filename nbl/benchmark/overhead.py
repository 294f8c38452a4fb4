"""What the framework adds to a round, and how a round divides into its verbs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from nbl.algorithms import Uniform
from nbl.algorithms.neural import NeuralBandit
from nbl.benchmark.measure import Player, Row, back_all, in_turn
from nbl.benchmark.problems import neural
from nbl.envs import ZhouH1
from nbl.run import fit


def loop(rounds: int = 1000, repeats: int = 3) -> Iterator[Row]:
    """`nbl.fit`, with its Trainer, hooks and the table of rounds, against the same rounds in a bare loop."""
    fit(Uniform(20), ZhouH1(), 1)  # imports
    for R in (1, 50):
        within, bare = [], []
        for _ in range(repeats):
            begun = time.process_time()
            fit(Uniform(20, replicas=R), ZhouH1(replicas=R), 1)  # what a Trainer takes to start
            started = time.process_time()
            fit(Uniform(20, replicas=R), ZhouH1(replicas=R), rounds)
            within.append((time.process_time() - started - (started - begun)) / rounds)
            player = Player(Uniform(20, replicas=R), ZhouH1(replicas=R))
            begun = time.process_time()
            for _ in range(rounds):
                player.play()
            bare.append((time.process_time() - begun) / rounds)
        ours, theirs = min(within), min(bare)
        note = f"overhead {(ours - theirs) * 1e6:.0f} us a round"
        yield Row("a round of uniform play", f"nbl.fit, R={R}", ours, "bare loop", theirs / ours, note=note)


def verbs(times: Sequence[int] = (50, 200, 1000), replicas: Sequence[int] = (1, 20)) -> Iterator[Row]:
    """NeuralUCB, d = 20, K = 4, m = 100, J = 100, exact confidence: where the time goes."""
    for R in replicas:
        for t in times if R == 1 else times[:2]:
            player = neural(replicas=R).until(t, every=None)
            policy, calls = player.policy, player.verbs()
            assert isinstance(policy, NeuralBandit)
            jobs = {"act": calls["act"], "observe": calls["observe"], "learn": policy.train_all}
            taken = in_turn(jobs, 3, most=10, between=back_all([player]))
            whole = sum(taken.values())
            for verb, seconds in taken.items():
                yield Row(verb, f"t={t}, R={R}", seconds, note=f"{seconds / whole:.0%} of the round")
