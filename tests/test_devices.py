"""Several processes play the run that one would play: the same arms, one table, one checkpoint."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import nbl
from nbl import checkpoint
from nbl.algorithms import NDB, NVLDB, VACDB, CoLSTIM, MaxInP, NeuralUCB
from nbl.algorithms.neural import NeuralBandit
from nbl.cli import main
from nbl.envs import DuelSquare, Quadratic, ZhouH1
from nbl.shards import Share, cut_state, cut_tree, join_states, join_trees, slices
from nbl.types import NblError
from tests import killer

ROOT = Path(__file__).parents[1]
SMALL = ["horizon=40", "env.arms=6", "env.dim=5", "checkpoint.every=7", "logger=none", "callbacks.progress=null"]
SMALL += ["trainer.precision=64-true"]
NET = ["algorithm.net.width=8", "algorithm.fit.steps=2"]
CASES = {
    "replicas": ["recipe=neural_ucb", "replicas=3", "algorithm.retrain.every=2", *NET],
    "members": ["recipe=neural_es", "replicas=1", "algorithm.members=5", "algorithm.warmup=6", *NET],
}


@pytest.fixture(scope="module")
def processes():
    """`processes(2, arguments, folder, log)`: as torchrun would start them."""
    context = multiprocessing.get_context("forkserver")
    nbl_parts = [
        "nbl.train",
        "nbl.algorithms",
        "nbl.envs",
        "nbl.results",
        "nbl.report.plots",
        "nbl.cli",
        "nbl_callbacks",
    ]
    context.set_forkserver_preload([*nbl_parts, "hydra", "rich.table", "matplotlib.figure", "pyarrow.parquet"])
    return lambda *args: killer.torchrun(context, *args)


def the_same(one, other):
    """Arms, rewards and regrets to the last bit; what rounding in another batch may shift, to 1e-9."""
    one, other = (pq.read_table(Path(folder) / "rounds.parquet") for folder in (one, other))
    assert one.num_rows == other.num_rows > 0 and one.column_names == other.column_names
    for name in one.column_names:
        if name in ("mean", "width"):
            a, b = (torch.tensor(table[name].to_numpy()) for table in (one, other))
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        else:
            np.testing.assert_array_equal(one[name].to_numpy(), other[name].to_numpy(), name)  # NaN is NaN: regret


# Who plays what -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "world"), [(5, 2), (6, 3), (7, 4), (2, 2), (1, 1)])
def test_slices_cover_everything_once_and_differ_by_at_most_one(n, world):
    parts = slices(n, world)
    assert [i for first, count in parts for i in range(first, first + count)] == list(range(n))
    assert max(c for _, c in parts) - min(c for _, c in parts) <= 1 <= min(c for _, c in parts)


def test_the_states_of_shares_make_the_state_of_the_whole(algorithm, play):
    """Three replicas on two processes: joined, their states are those of three replicas on one; and cut again, theirs.

    In this way every algorithm says truly where its replicas are (`layout`).
    """

    def played(replicas, seed):
        module = algorithm(replicas=replicas, seed=seed).double()
        play(module, algorithm.environment(replicas, seed), 12)
        return module

    parts_make_the_whole(played(3, 7), [played(2, 7), played(1, 9)])


@pytest.mark.parametrize("cls", [NVLDB, NDB, VACDB, CoLSTIM, MaxInP])
def test_so_do_the_states_of_duels(cls, play):
    def played(replicas, seed):
        small = {"fit": {"steps": 2}} if issubclass(cls, NeuralBandit) else {}
        module = cls(4, replicas=replicas, seed=seed, **small).double()
        play(module, DuelSquare(arms=4, dim=4, replicas=replicas, seed=seed), 6)
        return module

    parts_make_the_whole(played(3, 7), [played(2, 7), played(1, 9)])


def parts_make_the_whole(whole, parts):
    joined = join_states(whole, [part.state_dict() for part in parts], Share(3, 7, 0, 2))
    assert joined.keys() == whole.state_dict().keys()
    for key, value in whole.state_dict().items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(joined[key], value, rtol=1e-6, atol=1e-8, msg=lambda m, key=key: f"{key}: {m}")
        else:
            assert joined[key] == value
    for rank, part in enumerate(parts):
        cut = cut_state(part, joined, Share(3, 7, rank, 2))
        assert all(torch.equal(cut[k], v) for k, v in part.state_dict().items() if isinstance(v, torch.Tensor))
        part.load_state_dict(cut)


def test_environments_are_replica_by_replica():
    for make in (Quadratic, ZhouH1):
        parts = [make(replicas=2, seed=4).state_dict(), make(replicas=1, seed=6).state_dict()]
        whole = make(replicas=3, seed=4)
        joined = join_states(whole, parts, Share(3, 4, 0, 2))
        assert all(torch.equal(joined[k], v) for k, v in whole.state_dict().items() if isinstance(v, torch.Tensor))


def test_a_callbacks_state_is_joined_by_replica_and_cut_again():
    share = Share(3, 0, 1, 2)
    trees = [
        {
            "round": 5,
            "arms": torch.arange(2),
            "curve": torch.ones(4, 2),
            "order": torch.zeros(2, 3),
            "out": [{"due": 7}],
        },
        {
            "round": 5,
            "arms": torch.arange(1),
            "curve": torch.ones(4, 1),
            "order": torch.zeros(1, 2),
            "out": [{"due": 7}],
        },
    ]
    whole = join_trees(trees, share, {"curve": 1})
    assert whole["arms"].tolist() == [0, 1, 0] and whole["curve"].shape == (4, 3) and whole["out"] == [{"due": 7}]
    assert whole["order"][2].tolist() == [0, 0, -1]  # a plan that is shorter: then the algorithm chooses
    part = cut_tree(whole, share, {"curve": 1})
    assert part["round"] == 5 and part["arms"].tolist() == [0] and part["curve"].shape == (4, 1)


def test_a_buffer_without_replicas_is_named():
    module = NeuralUCB(3, replicas=2, net={"width": 4})
    module.register_buffer("odd", torch.zeros(3))
    with pytest.raises(NblError, match=r"odd has shape \(3,\).*layout"):
        cut_state(module, module.state_dict(), Share(2, 0, 0, 2))


# Several processes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_one_process_is_killed_and_the_run_resumes_on_any_number(case, processes, tmp_path, monkeypatch, capfd):
    """Two processes, the second killed in round 20: the other says so and stops. From the checkpoint of round 14 one,
    two and three processes each play the run that one process plays when nothing happens.
    """
    monkeypatch.chdir(tmp_path)
    common = [*CASES[case], *SMALL]
    assert main([*common, "out=whole"]) == 0
    kill = ["+callbacks.kill._target_=tests.killer.Kill", "+callbacks.kill.at=20", "+callbacks.kill.rank=1"]
    codes = processes(2, [*common, "out=killed", *kill], tmp_path, tmp_path / "log")
    assert codes == [1, -signal.SIGKILL]
    assert "another process of this run has ended" in Path("log").read_text()
    assert checkpoint.find("killed").name == "round-0000014.ckpt"
    for world in (1, 2, 3) if case == "replicas" else (3,):
        shutil.copytree("killed", f"on_{world}")
        resume = [f"resume=on_{world}", "callbacks.kill=null"]
        if world == 1:
            assert main([*resume, "trainer.devices=1"]) == 0
        else:
            assert processes(world, resume, tmp_path, tmp_path / "log") == [0] * world, Path("log").read_text()
        the_same("whole", f"on_{world}")
        assert Path(f"on_{world}/metrics.csv").read_text().count("\n") == Path("whole/metrics.csv").read_text().count(
            "\n"
        )
    policy = nbl.load(checkpoint.find("on_3"))
    assert policy.round == 40 and policy.replicas == int(common[1].split("=")[1])


def test_a_signal_to_one_process_stops_all_after_the_same_round(processes, tmp_path, monkeypatch):
    """SIGTERM to the second of two: a whole table, a checkpoint, and resuming plays on."""
    monkeypatch.chdir(tmp_path)
    common = ["recipe=lin_es", "replicas=2", *SMALL, "horizon=4000", "checkpoint.every=4000"]
    kill = ["+callbacks.kill._target_=tests.killer.Kill", "+callbacks.kill.at=5", "+callbacks.kill.rank=1"]
    kill += [f"+callbacks.kill.signum={int(signal.SIGTERM)}"]
    assert processes(2, [*common, "out=a", *kill], tmp_path, tmp_path / "log") == [143, 143]
    assert "Stopped by SIGTERM after round" in Path("log").read_text()
    rounds = pq.read_table("a/rounds.parquet")["round"].to_numpy()
    assert 5 <= rounds.max() < 4000 and len(rounds) == 2 * rounds.max()
    assert checkpoint.find("a").name == f"round-{rounds.max():07d}.ckpt"


def test_a_log_that_ends_in_one_process_ends_the_run_in_all_after_the_same_round(
    make_log, processes, tmp_path, monkeypatch
):
    """Three replicas on two processes read the log at a pace of their own: the run is that of one process."""
    monkeypatch.chdir(tmp_path)
    log = {name: pa.array(column) for name, column in make_log(120).items()}
    pq.write_table(pa.table(log), "log.parquet")
    common = ["recipe=logistic_ucb_1", "env=logged", "env.path=log.parquet", "replicas=3", "horizon=400"]
    common += ["logger=none", "callbacks.progress=null", "trainer.precision=64-true"]
    with pytest.warns(UserWarning, match="the log has ended"):
        assert main([*common, "out=whole"]) == 0
    assert processes(2, [*common, "out=two"], tmp_path, tmp_path / "log") == [0, 0], Path("log").read_text()
    the_same("whole", "two")


@pytest.mark.parametrize("launcher", ["torchrun", "lightning"])
def test_both_launchers_write_one_table(launcher, tmp_path, monkeypatch):
    """The real torchrun, and Lightning's own launcher, which runs the script again for the second process."""
    monkeypatch.chdir(tmp_path)
    common = ["recipe=lin_ucb", "replicas=3", *SMALL, "horizon=20"]
    assert main([*common, "out=whole"]) == 0
    start = [sys.executable]
    if launcher == "torchrun":
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*start, str(ROOT / "scripts" / "train.py"), *common, "out=two", "trainer.devices=2"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'callbacks'}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Results: two/") == 1
    the_same("whole", "two")


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["recipe=neural_ucb", "replicas=1", "trainer.devices=2"], "no members to share out"),
        (["recipe=neural_es", "replicas=1", "trainer.devices=4", "algorithm.members=3"], "3 members cannot be shared"),
        (["recipe=lin_ucb", "replicas=2", "trainer.devices=2", "+trainer.strategy=ddp"], "Leave it out"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(change, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*change, "horizon=5", "logger=none"]) == 2
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_torchrun_and_devices_must_agree(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    for name in ("GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, {"GROUP_RANK": "0"}.get(name, "1"))
    assert main(["recipe=lin_ucb", "horizon=5", "logger=none"]) == 2
    assert "trainer.devices=2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tasks", "more", "devices", "says"),
    [
        ("2", {"SLURM_NTASKS_PER_NODE": "2"}, 1, "srun started 2 processes, but trainer.devices=1 makes 1"),
        ("2", {"SLURM_NTASKS_PER_NODE": "2"}, 3, "srun --ntasks-per-node=3"),
        ("2", {}, 2, "srun --ntasks-per-node=2"),  # srun --ntasks=2, which Lightning does not understand
        (None, {}, 2, "srun started 1 process, but trainer.devices=2 makes 2"),  # a batch script without srun
    ],
)
def test_srun_and_devices_must_agree(tasks, more, devices, says, tmp_path, monkeypatch, capsys):
    """Not two processes that write into one folder, nor one that waits for another that never comes."""
    monkeypatch.chdir(tmp_path)
    slurm = {"SLURM_NTASKS": tasks or "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", **more}
    slurm |= {"SLURM_STEP_NUM_TASKS": tasks} if tasks else {}
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    assert main(["recipe=lin_ucb", "horizon=5", "replicas=4", "logger=none", f"trainer.devices={devices}"]) == 2
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_batch_script_that_asks_for_many_tasks_may_play_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NAME": "x"}.items():
        monkeypatch.setenv(name, value)
    assert main(["recipe=lin_ucb", "horizon=5", "replicas=2", "logger=none", "out=a"]) == 0
