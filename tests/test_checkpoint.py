"""A run that dies and is resumed is the run that never stopped; a damaged file is named, its predecessor resumes."""

import multiprocessing
import random
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from nbl import checkpoint
from nbl.cli import main
from nbl.module import BanditModule
from nbl.types import NblError
from tests import killer

QUIET = ["logger=none", "callbacks.progress=null"]
SMALL = ["horizon=40", "replicas=2", "checkpoint.every=7", "env.arms=6", "env.dim=5", *QUIET]
NET = ["algorithm.net.width=8", "algorithm.fit.steps=2"]
CASES = {
    "linear": ["recipe=lin_ucb"],
    "diagonal": ["recipe=neural_ucb", "algorithm.design=diagonal", *NET],
    "dual": ["recipe=neural_ucb", "algorithm.design=dual", *NET],
    "moving ridge": ["recipe=neural_log_ucb_2", "algorithm=neural_log_ucb_2_paper", "algorithm.net.width=8"],
    "levels": ["recipe=batched_neural_gcb", "algorithm.batch.first=3", *NET],
    "ensemble": ["recipe=neural_es", "algorithm.members=3", "algorithm.warmup=6", *NET],
}


@pytest.fixture(scope="module")
def child():
    """Starts a process that can be killed, without paying for the imports each time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["nbl.train", "nbl.algorithms", "nbl.envs", "nbl.results"])

    def start(arguments, folder):
        process = context.Process(target=killer.play, args=(arguments, folder))
        process.start()
        process.join(120)
        return process.exitcode

    return start


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A finished run of ten rounds with LinUCB, in runs/lin_ucb/a."""
    monkeypatch.chdir(tmp_path)
    small = ["horizon=10", "replicas=2", "logger=none", "callbacks.progress=null", "checkpoint.every=4"]
    assert main(["recipe=lin_ucb", *small, "out=runs/lin_ucb/a"]) == 0
    return Path("runs/lin_ucb/a")


@pytest.mark.parametrize("case", CASES)
def test_killed_at_three_random_rounds_and_resumed_equals_never_stopped(case, child, tmp_path, monkeypatch):
    """SIGKILL leaves no time for anything: only what was written before counts."""
    monkeypatch.chdir(tmp_path)
    common = [*CASES[case], *SMALL]
    assert child([*common, "out=whole"], tmp_path) == 0
    first, *others = sorted(random.Random(case).sample(range(8, 40), 3))
    out = f"out=runs/{common[0].split('=')[1]}/killed"
    kill = ["+callbacks.kill._target_=tests.killer.Kill", f"+callbacks.kill.at={first}"]
    assert child([*common, out, *kill], tmp_path) == -signal.SIGKILL
    for at in others:
        assert child([common[0], "resume=last", f"callbacks.kill.at={at}"], tmp_path) == -signal.SIGKILL
    assert child([common[0], "resume=last", "callbacks.kill=null"], tmp_path) == 0
    whole, resumed = pq.read_table("whole/rounds.parquet"), pq.read_table(f"{out[4:]}/rounds.parquet")
    assert whole.num_rows == 80 and whole.equals(resumed)
    assert Path("whole/metrics.csv").read_text() == Path(f"{out[4:]}/metrics.csv").read_text()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_by_a_signal_writes_what_was_played(signum, code, child, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kill = ["+callbacks.kill._target_=tests.killer.Kill", "+callbacks.kill.at=13"]
    kill += [f"+callbacks.kill.signum={int(signum)}"]
    assert child(["recipe=lin_ucb", *SMALL, "out=a", *kill], tmp_path) == code
    assert pq.read_table("a/rounds.parquet").num_rows == 13 * 2
    assert checkpoint.find("a").name == "round-0000013.ckpt"
    assert child(["resume=a", "callbacks.kill=null"], tmp_path) == 0
    assert pq.read_table("a/rounds.parquet").num_rows == 40 * 2


def test_the_two_newest_are_kept_and_the_last_round_is_among_them(run):
    assert sorted(f.name for f in (run / "checkpoints").iterdir()) == ["round-0000008.ckpt", "round-0000010.ckpt"]


def test_checkpoints_load_safely(run):
    saved = torch.load(checkpoint.find(str(run)), weights_only=True)
    assert saved["nbl"]["algorithm"] == "LinUCB" and saved["global_step"] == 10


@pytest.mark.parametrize("how", ["cut", "flipped", "empty"])
def test_damaged_checkpoint_is_named_and_the_one_before_it_resumes(run, how, capsys):
    newest = run / "checkpoints" / "round-0000010.ckpt"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    newest.write_bytes({"cut": data[: len(data) // 2], "flipped": data, "empty": b""}[how])
    assert main([f"resume={newest}"]) == 2
    message = capsys.readouterr().err
    assert str(newest) in message and f"({newest.stat().st_size} bytes)" in message and "round-0000008.ckpt" in message
    before = pq.read_table(run / "rounds.parquet")
    assert main(["recipe=lin_ucb", "resume=last"]) == 0
    assert "round-0000010.ckpt" in capsys.readouterr().err
    assert pq.read_table(run / "rounds.parquet").equals(before)
    assert checkpoint.damage(newest) is None


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    file, plugin = tmp_path / "a.ckpt", checkpoint.AtomicCheckpointIO()
    plugin.save_checkpoint({"x": torch.ones(3)}, file)
    monkeypatch.setattr(checkpoint.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        plugin.save_checkpoint({"x": torch.zeros(3)}, file)
    assert [f.name for f in tmp_path.iterdir()] == ["a.ckpt"]
    assert plugin.load_checkpoint(file)["x"].sum() == 3


@pytest.mark.parametrize("case", CASES)
def test_load_rebuilds_the_policy_from_the_file_alone(case, tmp_path, monkeypatch):
    """The rebuilt policy scores new contexts as the trained one did."""
    monkeypatch.chdir(tmp_path)
    kept = {}
    monkeypatch.setattr(BanditModule, "on_train_end", lambda self: kept.update(module=self), raising=False)
    assert main([*CASES[case], *SMALL, "horizon=12", "out=a"]) == 0
    policy, x = checkpoint.load(checkpoint.find("a")), torch.randn(2, 6, 5)
    assert policy.round == 12 and type(policy) is type(kept["module"])
    a, b = policy.act(x), kept["module"].act(x)
    assert torch.equal(a.arms, b.arms) and torch.equal(a.scores, b.scores)


def test_load_refuses_a_class_it_does_not_know(run, tmp_path):
    saved = torch.load(checkpoint.find(str(run)), weights_only=True)
    for name in ("os", "BanditModule", "__builtins__", None):
        torch.save({**saved, "nbl": {"algorithm": name}}, tmp_path / "other.ckpt")
        with pytest.raises(NblError, match="algorithm=MyAlgorithm"):
            checkpoint.load(tmp_path / "other.ckpt")


def test_resuming_keeps_the_problem(run, capsys):
    for change in ("horizon=20", "algorithm.nu=3", "env=linear", "seed=4", "recipe=lin_ts"):
        assert main([f"resume={run}", change]) == 2
        assert change.split("=")[0] in capsys.readouterr().err
    assert main([f"resume={run}", "horizon=10", "checkpoint.every=5", "logger=csv", "recipe=lin_ucb"]) == 0
