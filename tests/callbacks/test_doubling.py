"""The doubling trick: when it restarts, what it resets, what it costs, and that it serves any Lightning module."""

import itertools
import math

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from torch import nn

from nbl.algorithms import LinES
from nbl.types import NblError
from nbl_callbacks import DoublingTrick, Unsuitable, doubling_constant


class Watch(L.Callback):
    """After DoublingTrick's start hook: phase, horizon, members and nu of each round."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, module, batch, index):
        self.seen.append((module.phase, module.horizon, getattr(module, "members", None), getattr(module, "nu", None)))


def test_the_loss_constant_is_the_papers():
    """Lemma E.1 at gamma = 1/2, delta = 3/2, T_0 = 100: about 3.3, and b = (3 + sqrt 5)/2 is the best factor."""
    assert doubling_constant(0.5, 1.5, 100, 2.618) == pytest.approx(3.336, abs=1e-3)
    best = doubling_constant(0.5, 0.0)
    assert all(doubling_constant(0.5, 0.0, factor=b) > best for b in (2.0, 2.5, 2.7, 4.0))
    assert doubling_constant(0.5, 1.5, 1000) < doubling_constant(0.5, 1.5, 100)
    for bad in ((0.0, 1.0, 100, 2.0), (0.5, -1, 100, 2.0), (0.5, 1, 100, 1.0), (0.5, 1, 1, 1.5)):
        with pytest.raises(ValueError, match="doubling_constant"):
            doubling_constant(*bad)


def test_geometric_phases_are_the_papers():
    """T_i = floor(100 b^i) = 100, 261, 685, ...: a phase ends at T_i and is as long as its horizon."""
    trick = DoublingTrick()
    phases = [trick.phase(i) for i in range(6)]
    b = (3 + math.sqrt(5)) / 2
    for i, phase in enumerate(phases):
        assert phase.start + phase.length - 1 == math.floor(100 * b**i) and phase.horizon == phase.length
    assert [p.start for p in phases[:3]] == [1, 101, 262]
    assert all(a.start + a.length == b.start for a, b in itertools.pairwise(phases))


def test_powers_are_remark_3_9():
    """Restart at t = 2^s with horizon 2^(s+1): intervals [2^s, 2^(s+1)) that leave no round out."""
    trick = DoublingTrick("powers")
    assert [trick.phase(s)[:] for s in range(4)] == [(1, 1, 2), (2, 2, 4), (4, 4, 8), (8, 8, 16)]


def test_hyper_parameters_follow_the_phase(play):
    """Phases of 10, 15 and 37 rounds from rounds 1, 11 and 26: members = 2 log tau, nu = 0.02 log tau."""
    watch = Watch()
    trick = DoublingTrick(first=10, factor=2.5, scale={"members": 2.0, "nu": 0.02, "lam": 3.0})
    with pytest.warns(UserWarning, match="LinES cannot change lam"):
        play([trick, watch], horizon=40)
    for start, end, n in ((1, 10, 10), (11, 25, 15), (26, 40, 37)):
        for phase, horizon, members, nu in watch.seen[start - 1 : end]:
            assert horizon == n and members == round(2 * math.log(n)) and nu == pytest.approx(0.02 * math.log(n))
            assert phase == [1, 11, 26].index(start) + 1


def test_small_logs_leave_one_member(play):
    watch = Watch()
    play([DoublingTrick("powers", scale={"members": 1.0}), watch], horizon=2)
    assert [members for _, _, members, _ in watch.seen] == [1, 1]


@pytest.mark.parametrize("made", ["lin_es", "neural_es", "neural_ucb"])
def test_a_restart_forgets_everything(made, play):
    """At round 9 parameters, optimiser, history and confidence matrix are those of a new algorithm: what was observed
    after it is all there is.
    """

    class Fresh(L.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            if batch.t == 9:
                if hasattr(module, "history"):
                    assert module.history.n == 0 and torch.equal(module.net.theta, module.net.theta0)
                    assert not module.fit.moments.any() and not module.fit.taken.any()
                if hasattr(module, "design"):
                    assert not module.design.logdet().any()
                if hasattr(module, "moment"):
                    assert not module.moment.any() and not module.theta.any()
                self.asked = True

    fresh = Fresh()
    module, _ = play([DoublingTrick(first=8, factor=3), fresh], made, horizon=12)
    assert fresh.asked and module.round == 12 and module.phase == 2
    if hasattr(module, "history"):
        assert module.history.n == 4


@pytest.mark.parametrize("made", ["lin_es", "neural_es", "neural_ucb"])
def test_keep_history_keeps_the_data_and_trains_anew(made, play):
    class Kept(L.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            if batch.t == 9:
                if hasattr(module, "history"):
                    assert module.history.n == 8 and not torch.equal(module.net.theta, module.net.theta0)
                if hasattr(module, "design"):
                    assert (module.design.logdet() > 0).all()
                self.asked = True

    kept = Kept()
    module, _ = play([DoublingTrick(first=8, factor=3, keep_history=True), kept], made, horizon=12)
    assert kept.asked and module.phase == 2
    if hasattr(module, "history"):
        assert module.history.n == 12


def test_restarting_on_kept_data_with_another_number_of_members_is_refused():
    """Each member owns its perturbed data; the callback itself leaves `members` alone then (test_hostile.py)."""
    with pytest.raises(NblError, match=r"keep_history=True, members=7"):
        LinES(3, members=4).restart(10, keep_history=True, members=7)


@pytest.mark.parametrize("options", [{}, {"scale": {"members": 2.0, "nu": 0.02}}, {"keep_history": True}])
@pytest.mark.parametrize("made", ["lin_es", "neural_es"])
def test_resumed_in_any_phase(options, made, resumes):
    """Members change from phase to phase, and with them the shapes in the checkpoint."""
    resumes(lambda: [DoublingTrick(first=4, factor=2.2, **options)], made, horizon=22)


def test_resumed_with_powers(resumes):
    resumes(lambda: [DoublingTrick("powers", scale={"members": 2.0})], "neural_es", horizon=18, step=2)


class Ordinary(L.LightningModule):
    """A regressor with batch norm, Adam and a learning-rate schedule; nothing to do with bandits."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.trace = []

    def training_step(self, batch, index):
        adam = self.trainer.optimizers[0]
        steps = next((int(s["step"]) for s in adam.state.values()), 0)
        self.trace.append((steps, adam.param_groups[0]["lr"], float(self.net[0].weight.sum().detach())))
        return (self.net(batch) ** 2).mean()

    def configure_optimizers(self):
        adam = torch.optim.Adam(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(adam, 1, 0.5)
        return {"optimizer": adam, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


def fit(module, callbacks, steps, resume=None, **options):
    torch.manual_seed(0)
    rows = torch.randn(4, 4).repeat(100, 1)  # every batch the same: Lightning begins a plain loader anew on resuming
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    options = {"enable_checkpointing": False, **options}
    trainer = L.Trainer(max_steps=steps, callbacks=callbacks, **QUIET, **options)
    trainer.fit(module, loader, ckpt_path=resume, weights_only=None if resume is None else True)
    return trainer


def test_an_ordinary_module_gets_new_parameters_optimisers_and_schedules():
    """Phases begin at batches 1, 5 and 11: Adam's steps and the learning rate begin anew, the weights jump."""
    torch.manual_seed(0)
    module = Ordinary()
    trainer = fit(module, [DoublingTrick(first=4, factor=2.5)], 16)
    assert [steps for steps, _, _ in module.trace] == [0, 1, 2, 3, *range(6), *range(6)]
    assert [rate for _, rate, _ in module.trace[:6]] == pytest.approx([0.1, 0.05, 0.025, 0.0125, 0.1, 0.05])
    assert module.trace[4][2] != pytest.approx(module.trace[3][2], abs=0.05)
    assert module.net[1].num_batches_tracked == 6 and trainer.global_step == 16


def test_an_ordinary_run_resumed_in_any_phase(tmp_path):
    """New parameters are drawn from (seed, phase), not from the global generator, which Lightning does not save."""
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    whole = Ordinary()
    fit(whole, [DoublingTrick(first=4, factor=2.5), saver], 12, enable_checkpointing=True)
    for at in (2, 4, 5, 8, 10, 11):
        part = Ordinary()
        fit(part, [DoublingTrick(first=4, factor=2.5)], 12, resume=tmp_path / f"step={at}.ckpt")
        assert torch.allclose(torch.tensor(part.trace), torch.tensor(whole.trace[at:])), at


def test_what_an_ordinary_module_cannot_do_is_said_at_setup():
    class Own(BoringModel):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(2))

    with pytest.raises(Unsuitable, match=r"Own has parameters and no `reset_parameters`"):
        fit(Own(), [DoublingTrick()], 2)
    for options in ({"scale": {"members": 2.0}}, {"keep_history": True}):
        with pytest.raises(Unsuitable, match=r"Restartable.*BoringModel has no `restart`"):
            fit(BoringModel(), [DoublingTrick(**options)], 2)


@pytest.mark.parametrize("bad", [{"schedule": "often"}, {"first": 0}, {"first": 1, "factor": 1.5}, {"factor": 1.0}])
def test_bad_arguments(bad):
    with pytest.raises(ValueError, match="DoublingTrick"):
        DoublingTrick(**bad)
