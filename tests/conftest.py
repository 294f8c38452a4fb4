"""What several tests use: every algorithm at a small size, and a loop without a Trainer."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from nbl.algorithms import (
    GLMES,
    GLMFPL,
    GLMTSL,
    GLMUCB,
    BootstrapNN,
    EpsilonGreedy,
    KernelTS,
    KernelUCB,
    LinES,
    LinPHE,
    LinTS,
    LinUCB,
    NeuralES,
    NeuralLinear,
    NeuralPHE,
    NeuralTS,
    NeuralUCB,
    Uniform,
)

torch.set_num_threads(1)

SMALL = {"net": {"width": 8}, "fit": {"steps": 3, "ridge": 1.0}}
ALGORITHMS = {
    "neural_ucb": (NeuralUCB, {**SMALL, "nu": 0.3}),
    "neural_ucb_diagonal": (NeuralUCB, {**SMALL, "nu": 0.3, "design": "diagonal"}),
    "neural_ucb_dual": (NeuralUCB, {**SMALL, "nu": 0.3, "design": "dual"}),
    "neural_ucb_full": (NeuralUCB, {**SMALL, "nu": 0.3, "design": "full"}),
    "neural_ucb_last_layer": (NeuralUCB, {**SMALL, "nu": 0.3, "last_layer": True}),
    "neural_ucb_logdet": (NeuralUCB, {**SMALL, "nu": 0.3, "retrain": {"logdet": 1.5}}),
    "neural_ucb_zhou": (
        NeuralUCB,
        {
            "nu": 0.1,
            "net": {"kind": "zhou", "width": 8},
            "fit": {"optimizer": "gd", "lr": "theory", "steps": 5, "scale": "sum", "towards": "start", "start": "cold"},
        },
    ),
    "neural_ts": (NeuralTS, {**SMALL, "nu": 0.3}),
    "neural_linear": (NeuralLinear, {**SMALL, "retrain": {"every": 5}}),
    "neural_lin_ucb": (NeuralLinear, {**SMALL, "rule": "ucb", "recompute": False}),
    "epsilon_greedy": (EpsilonGreedy, {**SMALL, "epsilon": 0.1}),
    "bootstrap_nn": (BootstrapNN, {**SMALL, "members": 3}),
    "neural_es": (NeuralES, {**SMALL, "members": 3}),
    "lin_ucb": (LinUCB, {}),
    "lin_ts": (LinTS, {}),
    "lin_es": (LinES, {"members": 5}),
    "lin_phe": (LinPHE, {}),
    "glm_es": (GLMES, {"members": 3}),
    "glm_ucb": (GLMUCB, {}),
    "glm_tsl": (GLMTSL, {}),
    "glm_fpl": (GLMFPL, {}),
    "neural_phe": (NeuralPHE, {**SMALL}),
    "kernel_ucb": (KernelUCB, {"kernel": {"kind": "rbf"}, "keep": 150}),
    "ntk_ts": (KernelTS, {"kernel": {"kind": "ntk", "power": 2}, "nu": 0.3}),
    "uniform": (Uniform, {}),
}


@pytest.fixture(params=list(ALGORITHMS))
def algorithm(request):
    """Makes one of the algorithms: `algorithm(dim=..., replicas=..., ...)`."""
    cls, options = ALGORITHMS[request.param]

    def make(**problem):
        return cls(**{"dim": 5, **options, **problem})

    make.cls = cls
    return make


@pytest.fixture
def play():
    """Rounds without a Trainer. Returns arms and rewards, (T, R)."""

    def run(module, environment, rounds, first=1):
        arms, rewards = [], []
        for t in range(first, first + rounds):
            contexts = environment.contexts(t)
            decision = module.act(contexts)
            feedback = environment.pull(decision.arms)
            module.observe(contexts, decision, feedback)
            module.learn()
            arms.append(decision.arms)
            rewards.append(feedback.reward)
        return torch.stack(arms), torch.stack(rewards)

    return run
