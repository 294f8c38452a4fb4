"""What a hostile review of the callbacks found, so that nobody finds it again."""

import lightning as L
import pytest
import torch
from torch import nn

import nbl
from nbl import checkpoint
from nbl.algorithms import GLMES, LinES, LinUCB, NeuralES, NeuralTS
from nbl.envs import Linear, Logistic, ZhouH1
from nbl_callbacks import (
    DelayedFeedback,
    DoublingTrick,
    GOptimalWarmup,
    RetrainSchedule,
    RoundRobinWarmup,
    VarianceWeighting,
)

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


def saving(folder, every=5, keep=99):
    return {
        "enable_checkpointing": True,
        "plugins": [checkpoint.AtomicCheckpointIO()],
    }, checkpoint.RoundCheckpoint(folder, every, keep)


def test_neural_ts_with_delay_and_retraining_resumes(tmp_path):
    """What waits for the confidence matrix is in the checkpoint, and waits no longer than the round."""

    def made():
        module = NeuralTS(3, replicas=2, net={"width": 4}, fit={"steps": 2}, design="dual")
        return module, ZhouH1(arms=4, dim=3, replicas=2), [DelayedFeedback(4), RetrainSchedule(every=3)]

    options, keeper = saving(tmp_path, every=5)
    module, env, callbacks = made()
    whole = nbl.fit(module, env, 25, callbacks=[*callbacks, keeper], **options).arm
    assert module.pending.shape[1] == 0 and module.design.n == 25
    for at in (5, 10, 20):
        module, env, callbacks = made()
        again = nbl.fit(module, env, 25, callbacks=callbacks, resume=tmp_path / f"round-{at:07d}.ckpt", **options)
        assert torch.equal(again.arm[:, -1], whole[:, -1]) and module.history.n == 25


def test_the_last_checkpoint_has_what_was_told_at_the_end(tmp_path):
    options, keeper = saving(tmp_path, every=7)
    module = GLMES(3, arms=5, replicas=2, members=3, fixed_arms=True)
    nbl.fit(module, Logistic(arms=5, dim=3, replicas=2), 20, callbacks=[DelayedFeedback(100), keeper], **options)
    assert nbl.load(tmp_path / "round-0000020.ckpt").history.n == 20


def test_a_delay_changed_on_resuming_loses_nothing(tmp_path):
    options, keeper = saving(tmp_path, every=10)

    def made():
        return LinES(3, replicas=2, members=3), Linear(arms=5, dim=3, replicas=2)

    module, env = made()
    nbl.fit(module, env, 30, callbacks=[DelayedFeedback(6), keeper], **options)
    module, env = made()
    path = tmp_path / "round-0000010.ckpt"
    nbl.fit(module, env, 30, callbacks=[DelayedFeedback(2)], resume=path, **options)
    trace = module.design.inverse.double().inverse().diagonal(dim1=-2, dim2=-1).sum(-1) - 3  # sum of |x|^2 = rounds
    torch.testing.assert_close(trace, torch.full((2,), 30.0, dtype=torch.float64))


@pytest.mark.parametrize("warmup", [RoundRobinWarmup(2), GOptimalWarmup(tau=30, min_pulls=1)])
def test_warm_ups_play_no_forbidden_arm(warmup):
    class Masked(Linear):
        def mask(self, t):
            allowed = torch.ones(self.replicas, self.arms, dtype=torch.bool)
            allowed[:, t % self.arms] = allowed[:, 0] = False
            return allowed

    env = Masked(arms=6, dim=3, replicas=2)
    arms = nbl.fit(LinUCB(3, arms=6, replicas=2), env, 20, callbacks=warmup).arm
    assert (arms != 0).all() and (arms != torch.arange(1, 21) % 6).all() and (~(arms == arms[:, :1])).any()


class Plain(L.LightningModule):
    """A frozen backbone and a head, in an ordinary project."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 1)
        self.left = []

    def training_step(self, batch, index):
        self.left.append(self.head.weight.grad is None)
        return self.head(self.backbone(batch)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_restart_keeps_what_is_frozen_and_drops_old_gradients():
    module = Plain()
    backbone, head = module.backbone.weight.clone(), module.head.weight.clone()
    loader = torch.utils.data.DataLoader(torch.randn(40, 3), batch_size=4)
    trainer = L.Trainer(
        max_epochs=1, accumulate_grad_batches=4, callbacks=[DoublingTrick(first=6)], enable_checkpointing=False, **QUIET
    )
    trainer.fit(module, loader)
    assert torch.equal(module.backbone.weight, backbone) and not torch.equal(module.head.weight, head)
    assert module.left[6]  # the seventh batch opens a phase in the middle of an accumulation


def test_keep_history_with_the_papers_scale():
    """Members keep their own data, so their number stays; the perturbations follow the phase."""
    module = LinES(3, replicas=2, members=4, nu=0.5)
    doubling = DoublingTrick(first=10, scale={"members": 2.0, "nu": 0.02, "lam": None}, keep_history=True)
    nbl.fit(module, Linear(arms=5, dim=3, replicas=2), 40, callbacks=doubling)
    assert doubling.opened == 3 and module.members == round(2 * torch.tensor(10.0).log().item())


def test_a_schedule_changed_on_resuming_goes_on(tmp_path):
    options, keeper = saving(tmp_path, every=25)
    env = Linear(arms=5, dim=3, replicas=2)
    nbl.fit(LinES(3, replicas=2, members=3), env, 100, callbacks=[DoublingTrick(first=40), keeper], **options)
    doubling, module = DoublingTrick(first=10), LinES(3, replicas=2, members=3)
    nbl.fit(module, env, 100, callbacks=doubling, resume=tmp_path / "round-0000025.ckpt", **options)
    assert [doubling.phase(i).start for i in range(doubling.opened)][-1] == 69 and module.began == 68


def test_growth_needs_a_confidence_matrix_and_says_so_at_once():
    with pytest.raises(TypeError, match="no confidence matrix"):
        nbl.fit(NeuralES(3), Linear(arms=5, dim=3), 5, callbacks=RetrainSchedule(growth=2.0))
    nbl.fit(LinUCB(3), Linear(arms=5, dim=3), 5, callbacks=RetrainSchedule(growth=2.0))


def test_variance_weighting_of_a_generalised_linear_bandit():
    """mu' of the logistic family is at most 1/4, so every inverse weight is at least 4."""
    module = GLMES(3, arms=5, replicas=2, members=3)
    nbl.fit(module, Logistic(arms=5, dim=3, replicas=2), 10, callbacks=VarianceWeighting(eps=0.01))
    assert (module.history.data().weights >= 4 - 1e-9).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: GOptimalWarmup(tau=50.5),
        lambda: GOptimalWarmup(tau=5, min_pulls="paper", a=2),
        lambda: DelayedFeedback(2.5),
    ],
)
def test_bad_arguments_are_refused_at_once(make):
    with pytest.raises(ValueError, match="need"):
        make()
