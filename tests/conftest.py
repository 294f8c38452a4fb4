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
    NCBFUCB,
    AdaOFUECOLog,
    BatchedNeuralUCB,
    BootstrapNN,
    EpsilonGreedy,
    KernelTS,
    KernelUCB,
    LinES,
    LinPHE,
    LinTS,
    LinUCB,
    LogisticUCB1,
    NeuralES,
    NeuralGCB,
    NeuralLinear,
    NeuralLogTS1,
    NeuralLogTS2,
    NeuralLogUCB1,
    NeuralLogUCB2,
    NeuralPHE,
    NeuralTS,
    NeuralUCB,
    SupNeuralUCB,
    Uniform,
)
from nbl.envs import LogH6, ZhouH1

torch.set_num_threads(1)

SMALL = {"net": {"width": 8}, "fit": {"steps": 3, "ridge": 1.0}}
LEVELS = {"net": {"kind": "ntk", "width": 8}, "fit": {"steps": 3, "ridge": 1.0}, "levels": 5, "lam": 0.1}
THEORY = {
    "theory": True,
    "net": {"kind": "zhou", "width": 8},
    "fit": {
        "optimizer": "gd",
        "lr": "theory",
        "steps": 5,
        "scale": "sum",
        "ridge": None,
        "towards": "start",
        "start": "cold",
    },
}
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
    "neural_gcb": (NeuralGCB, {**LEVELS, "sigma0": 4.0, "eta0": 4.0, "alpha0": 0.2}),
    "batched_neural_gcb": (NeuralGCB, {**LEVELS, "sigma0": 4.0, "alpha0": 0.2, "batch": {"first": 2, "factor": 2}}),
    "adaptive_neural_gcb": (NeuralGCB, {**LEVELS, "sigma0": 4.0, "alpha0": 0.2, "batch": {"logdet": 1.5}}),
    "sup_neural_ucb": (SupNeuralUCB, {**LEVELS, "beta": 0.2}),
    "batched_neural_ucb": (BatchedNeuralUCB, {**SMALL, "nu": 0.3, "retrain": {"logdet": 2.0}}),
    "neural_log_ucb_1": (NeuralLogUCB1, {**SMALL, "nu": 0.1, "design": "diagonal", "retrain": {"every": 7}}),
    "neural_log_ucb_2": (NeuralLogUCB2, {**SMALL, "nu": 0.1}),
    "neural_log_ts_1": (NeuralLogTS1, {**SMALL, "nu": 0.1}),
    "neural_log_ts_2": (NeuralLogTS2, {**SMALL, "nu": 0.1, "design": "diagonal"}),
    "ncbf_ucb": (NCBFUCB, {**SMALL, "nu": 0.1}),
    "neural_log_ucb_1_paper": (NeuralLogUCB1, {**THEORY, "nu": 1e-3, "design": "dual"}),
    "neural_log_ucb_2_paper": (NeuralLogUCB2, {**THEORY, "nu": 1e-3}),
    "logistic_ucb_1": (LogisticUCB1, {"nu": 0.1}),
    "ada_ofu_ecolog": (AdaOFUECOLog, {"nu": 0.1}),
    "ada_ofu_ecolog_paper": (AdaOFUECOLog, {"nu": 0.1, "theory": True}),
    "uniform": (Uniform, {}),
}


@pytest.fixture(params=list(ALGORITHMS))
def algorithm(request):
    """Makes one of the algorithms: `algorithm(dim=..., replicas=..., ...)`."""
    cls, options = ALGORITHMS[request.param]

    def make(**problem):
        return cls(**{"dim": 5, **options, **problem})

    def environment(replicas=3, seed=0):
        """Rewards that it takes: coins where its likelihood is a coin's."""
        return (LogH6 if cls.bernoulli else ZhouH1)(arms=4, dim=5, replicas=replicas, seed=seed)

    make.cls, make.environment = cls, environment
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


@pytest.fixture
def make_log():
    """A log of n events as a table: two kinds of context, three actions, each kind with an action that pays."""

    def log(n=400, seed=0, skewed=False):
        g = torch.Generator().manual_seed(seed)
        kind = torch.randint(2, (n,), generator=g)
        even = torch.full((2, 3), 1 / 3, dtype=torch.float64)
        chance = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]], dtype=torch.float64) if skewed else even
        action = torch.multinomial(chance[kind], 1, generator=g).squeeze(1)
        pays = torch.tensor([[0.1, 0.2, 0.8], [0.8, 0.2, 0.1]])[kind, action]
        reward = (torch.rand(n, generator=g) < pays).double()
        columns = {"action": action, "reward": reward, "propensity": chance[kind, action]}
        return {"kind": ["ab"[k] for k in kind], **{name: column.numpy() for name, column in columns.items()}}

    return log
