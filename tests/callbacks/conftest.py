"""What the tests of callbacks share: short runs, and a run cut at every round."""

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from nbl.algorithms import GLMES, LinES, NeuralES, NeuralUCB
from nbl.envs import Linear, Logistic, Quadratic, ZhouH1
from nbl.loop import BanditLoop

MADE = {
    "lin_es": lambda **o: (LinES(3, arms=5, replicas=2, members=4, **o), Linear(arms=5, dim=3, replicas=2)),
    "glm_es": lambda **o: (
        GLMES(3, arms=5, replicas=2, fixed_arms=True, members=4, **o),
        Logistic(arms=5, dim=3, replicas=2),
    ),
    "neural_es": lambda **o: (
        NeuralES(
            3,
            arms=5,
            replicas=2,
            fixed_arms=True,
            net={"width": 4},
            fit={"steps": 2},
            **{"members": 3, "warmup": 0, **o},
        ),
        Quadratic(arms=5, dim=3, replicas=2),
    ),
    "neural_ucb": lambda **o: (
        NeuralUCB(3, replicas=2, net={"width": 4}, fit={"steps": 2}, **o),
        ZhouH1(arms=4, dim=3, replicas=2),
    ),
}


class Tape(L.Callback):
    """Keeps every round."""

    def __init__(self):
        self.rounds = []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.rounds.append(batch)

    @property
    def arms(self):
        return torch.stack([batch.decision.arms for batch in self.rounds])


def run(callbacks, made="lin_es", horizon=30, resume=None, **options):
    """Play; returns the module and the tape. `made` is a name or a (module, environment)."""
    module, environment = MADE[made]() if isinstance(made, str) else made
    tape = Tape()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    options = {**quiet, "enable_checkpointing": False, "max_steps": horizon, "max_epochs": -1, **options}
    trainer = L.Trainer(callbacks=[*callbacks, tape], **options)
    trainer.fit_loop = BanditLoop(trainer, environment, 7)
    trainer.fit(module, ckpt_path=resume, weights_only=None if resume is None else True)
    return module, tape


def same(a, b):
    """Two modules in the same state."""
    one, two = a.state_dict(), b.state_dict()
    tensors = {name for name in one if isinstance(one[name], torch.Tensor)}
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in tensors)


@pytest.fixture
def play():
    return run


@pytest.fixture
def equal_states():
    return same


@pytest.fixture
def resumes(tmp_path):
    """Checks that a run resumed after any round equals one never stopped: the same arms and the same module."""

    def check(callbacks, made="lin_es", horizon=30, step=1):
        saver = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
        module, whole = run([*callbacks(), saver], made, horizon, enable_checkpointing=True)
        for at in range(1, horizon, step):
            torch.manual_seed(at)
            again, part = run(callbacks(), made, horizon, resume=tmp_path / f"step={at}.ckpt")
            assert torch.equal(part.arms, whole.arms[at:]), at
            assert same(module, again) and module.round == again.round, at
        return module, whole

    return check
