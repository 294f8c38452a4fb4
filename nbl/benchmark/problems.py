"""The policies that are timed. One problem, NeuralUCB's 10 (a'x)^2, in many sizes; or a recipe's own."""

from __future__ import annotations

from typing import Any

from nbl import config
from nbl.algorithms import NeuralTS, NeuralUCB
from nbl.benchmark.measure import Player
from nbl.envs import ZhouH1
from nbl.train import build

GD = {"optimizer": "gd", "lr": 1e-3, "steps": 100, "scale": "mean"}
ADAM = {"optimizer": "adam", "lr": 1e-3, "steps": 100, "scale": "mean"}


def neural(
    dim: int = 20,
    arms: int = 4,
    width: int = 100,
    replicas: int = 1,
    design: str = "auto",
    fit: dict[str, Any] | None = None,
    horizon: int | None = None,
    thompson: bool = False,
) -> Player:
    """NeuralUCB or NeuralTS with one hidden layer; 100 steps of full-batch gradient descent every round."""
    environment = ZhouH1(arms=arms, dim=dim, replicas=replicas)
    kind = NeuralTS if thompson else NeuralUCB
    sizes: dict[str, Any] = {"replicas": replicas, "horizon": horizon}
    policy = kind(dim, arms=arms, net={"width": width}, fit=fit or GD, design=design, **sizes)
    return Player(policy, environment)


def recipe(*overrides: str, replicas: int = 1) -> Player:
    """What scripts/train.py would play, without a Trainer and without callbacks."""
    chosen = config.compose([*overrides, f"replicas={replicas}"])
    environment = build(chosen.env, "env", replicas=replicas, seed=0)
    sizes = {"dim": environment.dim, "arms": environment.arms, "fixed_arms": environment.fixed_arms}
    policy = build(chosen.algorithm, "algorithm", horizon=chosen.horizon, replicas=replicas, seed=0, **sizes)
    return Player(policy, environment)
