"""How the cost of a round grows with t, with the arms, the width and the contexts, and what a run keeps in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from nbl.algorithms import NeuralES
from nbl.benchmark.measure import Player, Row, back_all, in_turn
from nbl.benchmark.problems import neural
from nbl.benchmark.textbook import Textbook
from nbl.envs import Quadratic

NET = {"width": 20, "depth": 3}  # the paper's N and L
FIT = {"optimizer": "adam", "lr": 0.01, "steps": 10, "ridge": 0.3}
LIMIT = 0.060  # seconds, of a selection among a thousand arms


def fixed_arms(late: int = 10_000, early: int = 100, replicas: Sequence[int] = (1, 10)) -> Iterator[Row]:
    """Neural-ES, K = 50, d = 20, M = 10: data are kept per arm, so that a late round costs what an early one does."""
    for R in replicas:
        players = {t: _ensemble(R).until(t) for t in (early, late)}
        taken = in_turn({str(t): player.play for t, player in players.items()})
        yield from _flat(taken, early, late, R)


def long_run(late: int = 100_000, early: int = 100, batch: int = 500) -> Iterator[Row]:
    """The same at t = 10^5. The rounds before are played in batches, one policy asked `batch` questions at once."""
    players = {t: _ensemble(1) for t in (early, late)}
    players[early].until(early)
    far = players[late]
    contexts = far.environment.contexts(1).expand(batch, -1, -1)
    while far.t < late:
        decision = far.policy.act(contexts)
        mean = far.environment.mean(contexts[:1])[0][decision.arms]
        far.policy.observe(contexts, decision, mean + 0.5 * torch.randn(batch))
        far.policy.learn()
        far.t += batch
    taken = in_turn({str(t): player.play for t, player in players.items()})
    yield from _flat(taken, early, late, 1)


def _flat(taken: dict[str, float], early: int, late: int, R: int) -> Iterator[Row]:
    what = "round of neural_es, fixed arms"
    yield Row(what, f"t={early}, R={R}", taken[str(early)])
    ratio = taken[str(early)] / taken[str(late)]
    yield Row(what, f"t={late}, R={R}", taken[str(late)], f"t={early}", ratio, 1 / 1.3, 1 / 1.6)


def rounds(times: Sequence[int] = (100, 1000, 10_000)) -> Iterator[Row]:
    """NeuralUCB with fresh contexts: training grows with t, confidence with t^2 until t = p, then not at all."""
    first = math.nan
    for t in times:
        player = neural(width=20).until(t, every=None)
        jobs = {"round": player.play, "confidence": player.verbs()["both"]}
        taken = in_turn(jobs, 3, most=5, between=back_all([player]))
        first = taken["round"] if math.isnan(first) else first
        note = f"act + observe {taken['confidence'] * 1e3:.2f} ms"
        yield Row("round, m=20, J=100", f"t={t}", taken["round"], f"t={times[0]}", first / taken["round"], note=note)


def sizes(
    arms: Sequence[int] = (4, 32, 250, 1000),
    widths: Sequence[int] = (20, 100, 300, 1000),
    dims: Sequence[int] = (5, 20, 100, 500),
    t: int = 200,
) -> Iterator[Row]:
    """One of K = 4, m = 100, d = 20 is changed at a time."""
    for name, key, values in (("K", "arms", arms), ("m", "width", widths), ("d", "dim", dims)):
        first = math.nan
        for value in values:
            size: dict[str, int] = {key: value}
            player = neural(**size).until(t, every=None)  # type: ignore[arg-type]
            jobs = {"round": player.play, "confidence": player.verbs()["both"]}
            taken = in_turn(jobs, 3, most=5, between=back_all([player]))
            first = taken["round"] if math.isnan(first) else first
            note = f"act + observe {taken['confidence'] * 1e3:.2f} ms"
            against = f"{name}={values[0]}"
            ratio = first / taken["round"]
            yield Row(f"round, t={t}, J=100", f"{name}={value}", taken["round"], against, ratio, note=note)


def memory(times: Sequence[int] = (100, 1000), width: int = 100, dim: int = 20) -> Iterator[Row]:
    """Bytes of a policy's state: the ratio is the textbook's p x p over ours."""
    matrix = Textbook(dim, width, dtype=torch.float32).inverse.nbytes
    for design in ("dual", "full", "diagonal"):
        for t in times if design == "dual" else times[:1]:
            player = neural(dim, width=width, design=design, horizon=t).until(t, every=None)
            state = [*player.policy.buffers(), *player.policy.parameters()]
            size = sum(part.nbytes for part in state)
            note = f"{size / 1e6:.1f} MB"
            yield Row("memory", f"{design}, t={t}", math.nan, "textbook, float32", matrix / size, note=note)


def many_arms(t: int = 1000, arms: int = 1000) -> Iterator[Row]:
    """A selection among K = 1000 arms with exact confidence: d = 50, m = 100."""
    player = neural(50, arms=4, design="dual").until(t, every=None)
    wide = neural(50, arms=arms).environment.contexts(1)
    taken = in_turn({"act": lambda: player.policy.act(wide)}, 5)["act"]
    yield Row("act, exact", f"K={arms}, d=50, m=100, t={t}", taken, "60 ms", LIMIT / taken, 1.0, 0.5)


def _ensemble(replicas: int) -> Player:
    environment = Quadratic(replicas=replicas)
    size = {"arms": environment.arms, "fixed_arms": True, "replicas": replicas}
    return Player(NeuralES(environment.dim, nu=0.3, warmup=50, net=NET, fit=FIT, **size), environment)
