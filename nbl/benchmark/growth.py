"""How the cost of a round grows with t."""

from __future__ import annotations

from nbl.algorithms import NeuralES
from nbl.benchmark.measure import Player, Row, in_turn
from nbl.envs import Quadratic

NET = {"width": 20, "depth": 3}  # the paper's N and L
FIT = {"optimizer": "adam", "lr": 0.01, "steps": 10, "ridge": 0.3}


def fixed_arms(late: int = 10_000, early: int = 100) -> list[Row]:
    """Neural-ES, K = 50, d = 20, M = 10: data are kept per arm, so that a late round costs what an early one does."""
    rows = []
    for replicas in (1, 10):
        players = {t: _ensemble(replicas).until(t) for t in (early, late)}
        taken = in_turn({str(t): player.play for t, player in players.items()})
        rows += [
            Row("round of neural_es, fixed arms", f"t={early}, R={replicas}", taken[str(early)]),
            Row(
                section="round of neural_es, fixed arms",
                case=f"t={late}, R={replicas}",
                seconds=taken[str(late)],
                against=f"t={early}",
                ratio=taken[str(early)] / taken[str(late)],
                target=1 / 1.3,
                floor=1 / 1.6,
            ),
        ]
    return rows


def _ensemble(replicas: int) -> Player:
    environment = Quadratic(replicas=replicas)
    sizes = {"arms": environment.arms, "fixed_arms": True, "replicas": replicas}
    return Player(NeuralES(environment.dim, nu=0.3, warmup=50, net=NET, fit=FIT, **sizes), environment)
