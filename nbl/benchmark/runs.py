"""Whole runs of NeuralUCB and NeuralTS against the textbook: d = 20, K = 4, m = 100, J = 100 steps every round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from nbl.benchmark.measure import Job, Player, Row, back_all, in_turn, integral
from nbl.benchmark.problems import neural
from nbl.benchmark.textbook import Textbook


def textbook(
    early: Sequence[int] = (1, 50, 200),
    late: Sequence[int] = (600, 1200, 2000),
    names: Sequence[str] = ("NeuralUCB", "NeuralTS"),
) -> Iterator[Row]:
    """A round is timed at some t, and the rounds in between by trapezoids: a whole textbook run takes minutes."""
    for name in names:
        thompson = name == "NeuralTS"
        mine, theirs = dict[int, float](), dict[int, float]()
        ends = {early[-1]: (8.0, 2.5), late[-1] if late else 0: (3.0, 1.2)}
        for t in (*early, *late):
            player = neural(thompson=thompson).until(t, every=None)
            jobs = {"mine": player.play, "theirs": whole_round(Textbook(20, 100, thompson=thompson), player, t)}
            taken = in_turn(jobs, 3 if t > 200 else 5, 0.1, most=10, between=back_all([player]))
            mine[t], theirs[t] = taken["mine"], taken["theirs"]
            if t in ends:
                a, b = integral(mine), integral(theirs)
                yield Row(f"run of {name}", f"T={t}, a round", a / t, "textbook, p x p", b / a, *ends[t])


def whole_round(book: Textbook, player: Player, t: int) -> Job:
    """A textbook's round t, with a past of t - 1 rounds."""
    contexts = player.environment.contexts(1)[0].float()
    book.remember(torch.randn(t - 1, contexts.shape[1]), torch.randn(t - 1))

    def play() -> None:
        arm = book.act(contexts)
        book.observe(contexts[arm], torch.zeros(()))
        book.learn()
        book.inputs, book.rewards = book.inputs[: t - 1], book.rewards[: t - 1]

    return play
