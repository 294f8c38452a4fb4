"""What a hostile user found once, so that nobody finds it again."""

import zipfile

import numpy as np
import pytest
import torch

import nbl
from nbl import checkpoint, cli, explore
from nbl.algorithms import LinTS, LinUCB, NeuralES, NeuralLinear, NeuralTS, NeuralUCB
from nbl.envs import ZhouH1
from nbl.types import NblError

D = 3


def saved(module, path, rounds=5):
    """Play a little with a Trainer and keep its checkpoint."""
    env = ZhouH1(arms=4, dim=D, replicas=module.replicas)
    keep = checkpoint.RoundCheckpoint(path, every=rounds)
    nbl.fit(module, env, rounds, callbacks=keep, enable_checkpointing=True, plugins=[checkpoint.AtomicCheckpointIO()])
    return path / f"round-{rounds:07d}.ckpt", env


def test_a_cold_neural_linear_keeps_recomputing_its_features(play):
    """Training was once detected by the step count, which a cold start does not change."""
    module = NeuralLinear(D, fit={"start": "cold", "steps": 5}).double()
    play(module, ZhouH1(arms=4, dim=D), 6)
    before = module.moment.clone()
    module._rebuild()
    torch.testing.assert_close(module.moment, before)


@pytest.mark.parametrize("nu", [np.float64(0.3), np.float32(0.5), torch.tensor(0.25)])
def test_numbers_of_numpy_and_torch_are_kept(nu, tmp_path):
    """A sweep over np.linspace: the checkpoint loads safely, and gives the same policy."""
    module = LinTS(np.int64(D), nu=nu, seed=np.int64(7))
    path, env = saved(module, tmp_path)
    again = nbl.load(path)
    assert again.nu == pytest.approx(float(nu)) and again.seeds == (7,) and type(again.hparams["nu"]) is float
    contexts = env.contexts(9)
    assert torch.equal(again.act(contexts).scores, module.act(contexts).scores)


def test_a_network_of_ones_own_is_asked_for_and_its_buffers_are_kept(tmp_path):
    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(D, 1)
            self.register_buffer("mu", torch.randn(D))

        def forward(self, x):
            return self.layer(x - self.mu)

    module = NeuralUCB(D, net=Shifted, fit={"steps": 2})
    path, env = saved(module, tmp_path)
    with pytest.raises(NblError, match=r"net=\.\.\."):
        nbl.load(path)
    contexts = env.contexts(9)
    assert torch.equal(nbl.load(path, net=Shifted).act(contexts).means, module.act(contexts).means)


def test_sums_over_rounds_stay_exact_in_any_precision():
    """In bfloat16 a sum of ones stops at 256."""
    module = LinUCB(1).bfloat16().float()
    for _ in range(600):
        module.observe(torch.ones(1, 1), 0, 1.0)
    assert module.act(torch.ones(1, 1)).means.item() == pytest.approx(1.0, abs=0.01)
    with pytest.raises(NblError, match="coarse"):
        NeuralUCB(1).bfloat16().act(torch.ones(1, 1))
    with pytest.raises(NblError, match="bf16-mixed"):
        nbl.fit(LinUCB(D), ZhouH1(arms=4, dim=D), 3, precision="bf16-true")


def test_what_overflows_in_single_precision_is_refused():
    module = NeuralES(D, net={"width": 4})
    with pytest.raises(NblError, match="contexts hold"):
        module.observe(torch.full((2, D), 1e39, dtype=torch.float64), 0, 1.0)
    assert module.round == 0 and module.history.n == 0


@pytest.mark.parametrize("value", ["three", None, {"a": 1}, 1j])
def test_what_is_not_numbers_is_refused(value):
    with pytest.raises(NblError, match="observe"):
        LinUCB(D).observe(torch.ones(2, D), 0, value)
    with pytest.raises(NblError, match=r"act"):
        LinUCB(D).act(value)


@pytest.mark.parametrize("changes", [{"horizon": 0}, {"horizon": 2.5}, {"nu": -1.0}, {"members": 0}])
def test_bad_restarts_are_refused(changes):
    module = NeuralES(D, net={"width": 4})
    with pytest.raises(NblError, match="restart"):
        module.restart(**changes)
    assert module.phase == 0 and module.members == 10


@pytest.mark.parametrize("seed", [None, 1.5, "7", 2**63])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(NblError, match="seed"):
        LinUCB(D, seed=seed)


def test_saved_between_observe_and_learn():
    """NeuralTS keeps what waits for the confidence matrix."""
    module, other = NeuralTS(D, net={"width": 4}), NeuralTS(D, net={"width": 4})
    contexts = torch.randn(4, D)
    module.observe(contexts, 1, 0.5)
    other.load_state_dict(module.state_dict())
    for each in (module, other):
        each.learn()
    assert torch.equal(module.act(contexts).widths, other.act(contexts).widths)


def test_regret_is_measured_against_the_arms_that_may_be_played():
    class OnlyTwo(ZhouH1):
        def mask(self, t):
            allowed = torch.zeros(self.replicas, self.arms, dtype=torch.bool)
            allowed[:, 2] = True
            return allowed

    rounds = nbl.fit(LinUCB(D, replicas=2), OnlyTwo(arms=4, dim=D, replicas=2), 20)
    assert (rounds.arm == 2).all() and (rounds.regret == 0).all()


def test_one_terrible_arm_does_not_tie_the_others():
    assert explore.tied(torch.tensor([-1e6, 0.5, 0.1])).tolist() == [False, True, False]
    assert explore.tied(torch.tensor([-torch.inf, 0.5, 0.5])).tolist() == [False, True, True]
    assert explore.tied(torch.tensor([0.3])).tolist() == [True]


def test_any_damage_is_named(tmp_path):
    """One bit in an archive's directory: torch itself may load uninitialised memory."""
    path, _ = saved(LinUCB(D), tmp_path)
    whole = path.read_bytes()
    entry = whole.rfind(b"PK\x01\x02")
    for offset, bit in ((10, 5), (38, 4), (8, 0), (20, 3), (46, 7)):
        broken = bytearray(whole)
        broken[entry + offset] ^= 1 << bit
        path.write_bytes(broken)
        with pytest.raises(NblError, match=path.name):
            checkpoint.read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello", "not a checkpoint")
    with pytest.raises(NblError, match=path.name):
        checkpoint.read(path)


def test_two_runs_in_one_second_have_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = ["recipe=uniform", "horizon=3", "replicas=1", "logger=none", "checkpoint.every=0"]
    for _ in range(3):
        assert cli.main(run) == 0
    assert len(list((tmp_path / "runs/uniform").iterdir())) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        "out=taken",
        "out=taken/below",
        "out=[a]",
        "env=null",
        "algorithm=null",
        "checkpoint=null",
        "checkpoint.keep=abc",
        "+foo=1",
        "seed=9223372036854775807",
        "+algorithm.retrain.until=abc",
        "algorithm.warmup=abc",
        "+algorithm.fit.momentum=abc",
        "trainer.precision=bf16-true",
    ],
)
def test_user_errors_have_no_traceback_and_leave_nothing(wrong, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    assert cli.main(["recipe=neural_es", "horizon=5", "replicas=1", "logger=none", wrong]) in (1, 2)
    assert "Error" in capsys.readouterr().err
    assert wrong.startswith("trainer") or [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_a_misspelt_recipe_key_is_recognised(capsys):
    assert cli.main(["receipe=neural_es"]) == 2
    said = capsys.readouterr().err
    assert "recipe=neural_es" in said and "uniform" in said


def test_a_sweep_is_as_good_as_its_worst_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gd = ["algorithm.fit.optimizer=gd", "algorithm.fit.scale=sum", "algorithm.fit.lr=1e10,0.0001"]
    assert (
        cli.main(["-m", "recipe=neural_ucb", *gd, "horizon=20", "replicas=1", "logger=none", "checkpoint.every=0"]) == 1
    )


@pytest.mark.parametrize("lam", [1e-16])
def test_a_ridge_too_small_for_rounding_says_so(lam):
    env = ZhouH1(arms=4, dim=D)
    module = LinTS(D, lam=lam)
    try:
        nbl.fit(module, env, 60)
    except NblError as error:
        assert "lam" in str(error)


def test_room_for_the_factor_stops_where_it_is_known_to():
    """Doubling past the turn would ask for four times the memory three rows before it is freed."""
    module = NeuralUCB(2, net={"width": 6}, fit={"steps": 1})
    turn = module.design.turn
    for _ in range(turn - 1):
        module.observe(torch.randn(2, 2), 0, 0.1)
    assert module.design.form.factor.shape[1] <= turn
