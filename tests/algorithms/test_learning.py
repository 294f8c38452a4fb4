"""Algorithms learn: better than chance by a margin that several seeds set."""

import numpy as np
import pytest
import torch

import nbl
from nbl.algorithms import EpsilonGreedy, LinES, LinTS, LinUCB, NeuralES, NeuralLinear, NeuralTS, NeuralUCB, Uniform
from nbl.envs import Linear, Quadratic, ZhouH1

FAST = {"net": {"width": 20}, "fit": {"steps": 10, "lr": 0.01, "ridge": 3.0}}
SMALL_ENV = {"arms": 4, "dim": 6, "noise": 0.3, "replicas": 8, "seed": 500}
CASES = {
    "neural_ucb": (NeuralUCB, {**FAST, "nu": 0.1}),
    "neural_ts": (NeuralTS, {**FAST, "nu": 0.1}),
    "neural_ts_diagonal": (NeuralTS, {**FAST, "nu": 0.1, "design": "diagonal"}),
    "neural_linear": (NeuralLinear, FAST),
    "neural_lin_ucb": (NeuralLinear, {**FAST, "rule": "ucb"}),
    "epsilon_greedy": (EpsilonGreedy, FAST),
    "neural_es": (NeuralES, {**FAST, "members": 4}),
    "lin_ucb": (LinUCB, {}),
    "lin_ts": (LinTS, {"nu": 0.3}),
    "lin_es": (LinES, {}),
}


def regret(cls, env, rounds, **options):
    module = cls(
        env.dim, arms=env.arms, replicas=env.replicas, seed=500, horizon=rounds, fixed_arms=env.fixed_arms, **options
    )
    return nbl.fit(module, env, rounds).regret


@pytest.mark.parametrize("name", CASES)
def test_beats_uniform_play(name):
    """Regret over the second half of 300 rounds, 8 seeds, paired: below 0.7 of uniform play's on average, in at least
    7 of 8.
    """
    cls, options = CASES[name]
    make = Linear if name.startswith("lin") else ZhouH1
    chance = regret(Uniform, make(**SMALL_ENV), 300)[:, 150:].sum(1)
    learnt = regret(cls, make(**SMALL_ENV), 300, **options)[:, 150:].sum(1)
    assert learnt.mean() < 0.7 * chance.mean()
    assert (learnt < chance).sum() >= 7


def test_linucb_has_logarithmic_looking_regret_on_a_linear_problem():
    """Regret grows more slowly than log^2 t would from 500 to 4000 rounds, and far from linearly (8 times)."""
    env = Linear(arms=10, dim=4, noise=0.3, replicas=8, seed=500)
    total = regret(LinUCB, env, 4000, nu=1.0).cumsum(1).mean(0)
    growth = (total[3999] / total[499]).item()
    assert growth < (np.log(4000) / np.log(500)) ** 2 * 1.3 < 8 / 3


def test_neural_es_beats_lin_es_on_quadratic():
    """A nonlinear reward: the linear ensemble cannot see it."""
    env = {"arms": 20, "dim": 10, "noise": 0.1, "replicas": 8, "seed": 500}
    net = {"net": {"width": 20}, "fit": {"steps": 20, "lr": 0.01, "ridge": 0.3}}
    neural = regret(NeuralES, Quadratic(**env), 400, members=4, **net)[:, 100:].sum(1)
    linear = regret(LinES, Quadratic(**env), 400)[:, 100:].sum(1)
    assert neural.mean() < linear.mean()


def test_paper_presets_learn():
    """The equations as printed, with the theory's step size: slow, but better than chance."""
    env = ZhouH1(arms=4, dim=4, noise=0.1, replicas=6, seed=500)
    chance = regret(Uniform, env, 200)[:, 100:].sum(1)
    paper = {"optimizer": "gd", "lr": "theory", "steps": 100, "scale": "sum", "towards": "start", "start": "cold"}
    for cls in (NeuralUCB, NeuralTS):
        learnt = regret(cls, env, 200, nu=0.1, net={"kind": "zhou", "width": 20}, fit=paper)[:, 100:].sum(1)
        assert learnt.mean() < 0.8 * chance.mean()
    assert torch.isfinite(chance).all()
