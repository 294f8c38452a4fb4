"""Sweeps: finished runs are skipped, each launcher plays the same, the plan adds up."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nbl import estimate, reproduce, sweeps
from nbl.cli import main
from tests import killer

QUICK = ["recipe=uniform", "horizon=10", "replicas=2", "logger=none"]
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])


def test_a_sweep_goes_on_with_what_is_not_done(capsys):
    """A run is done if its folder holds its config's digest; another horizon is another run."""
    assert main(["-m", *QUICK, "seed=0,10", "out=s"]) == 0
    before = Path("s/seed=0/summary.json").stat().st_mtime_ns
    capsys.readouterr()
    assert main(["-m", *QUICK, "seed=0,10,20", "out=s"]) == 0
    assert capsys.readouterr().out.count("done before") == 2
    assert Path("s/seed=0/summary.json").stat().st_mtime_ns == before
    assert main(["-m", *QUICK, "seed=0,10", "out=s", "horizon=12"]) == 0
    assert json.loads(Path("s/seed=0/summary.json").read_text())["horizon"] == 12
    assert Path("s/seed=0.old1/summary.json").exists()


@pytest.mark.parametrize(("at", "again"), [(3, False), (25, True)])
def test_a_sweep_killed_inside_a_run_goes_on_to_the_same_table(at, again, tmp_path, monkeypatch, capsys):
    """SIGKILL in the second of three runs, before and after its first checkpoint: the first is skipped, the second
    begins again or goes on, and everything is as if nothing had happened."""
    line = ["-m", "recipe=lin_ucb", "horizon=40", "replicas=2", "logger=none", "checkpoint.every=10", "seed=0,10,20"]
    assert main([*line, "out=whole"]) == 0
    kill = [f"+callbacks.kill.{key}={value}" for key, value in {"at": at, "seed": 10, "once": "killed"}.items()]
    line += ["+callbacks.kill._target_=tests.killer.Kill", *kill, "out=s"]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["nbl.train", "nbl.algorithms", "nbl.envs", "nbl.results"])
    process = context.Process(target=killer.play, args=(line, tmp_path))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    first, folder = Path("s/seed=0/summary.json").stat().st_mtime_ns, Path("s/seed=10")
    assert not json.loads((folder / "suite.json").read_text())["done"] and not Path("s/seed=20").exists()
    assert any((folder / "checkpoints").glob("*.ckpt")) == again
    train, starts = reproduce._train, []
    monkeypatch.setattr(reproduce, "_train", lambda run, start, log: starts.append(start) or train(run, start, log))
    capsys.readouterr()
    assert main(line) == 0
    assert [start and start.name for start in starts] == ["round-0000020.ckpt" if again else None, None]
    said = capsys.readouterr().out
    assert said.count("done before") == 1 and "seed=0: done before" in said and "3 of 3 runs are done" in said
    assert Path("s/seed=0/summary.json").stat().st_mtime_ns == first
    for seed in (0, 10, 20):
        one, two = (Path(out, f"seed={seed}") for out in ("whole", "s"))
        assert pq.read_table(one / "rounds.parquet").equals(pq.read_table(two / "rounds.parquet"))
        assert (one / "metrics.csv").read_text() == (two / "metrics.csv").read_text()
        assert (
            json.loads((one / "summary.json").read_text())["regret"]
            == (json.loads((two / "summary.json").read_text())["regret"])
        )


def test_a_dry_run_plans_many_runs_and_writes_nothing(capsys):
    assert main(["-m", *QUICK, "seed=range(0,10000)", "out=s", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "10,000 runs, 0 of them done; 100,000 rounds" in said and "10,000 x uniform" in said
    assert not list(Path().iterdir())


def test_the_plan_adds_up():
    name = ("lin_ucb", "zhou_h1", "lin_ucb", 5)
    speed = estimate.Speed(100.0, 1000, 1e5, 50.0)
    lines = estimate.describe(Path("s"), 10_001, [(name, 100_000)] * 10_000, {name: speed}, 4)
    assert "10,001 runs, 1 of them done; 1,000,000,000 rounds" in lines[0]
    total = 10_000 * (1000 + estimate.START)
    assert estimate.clock(total) in lines[2] and estimate.clock(total / 40) in lines[3]
    assert f"a day on {-(-total // (4 * 86400)):.0f}" in lines[3] and "51.0 GB" in lines[4]


def test_what_is_wrong_is_said_before_the_first_run(capsys):
    for wrong, says in (("seed=1,1", "twice"), ("seed=0,x", "seed=x"), ("hydra/launcher=slrm", "submitit_slurm")):
        assert main(["-m", *QUICK, wrong, "out=s"]) == 2
        assert says in capsys.readouterr().err
    assert not list(Path().iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "ray"])
def test_every_launcher_plays_the_same(launcher):
    if not sweeps._there(sweeps.LAUNCHERS[launcher][0]):
        pytest.skip(f"{launcher} is not installed")
    assert main(["-m", *QUICK, "seed=0,10", "out=here"]) == 0
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "callbacks"), *sys.path])}
    command = [sys.executable, "-m", "nbl", "-m", *QUICK, "seed=0,10", "out=there", f"hydra/launcher={launcher}"]
    assert subprocess.run(command, env=environ, timeout=300).returncode == 0
    before = {file: file.stat().st_mtime_ns for file in Path("there").glob("seed=*/*")}
    assert subprocess.run(command, env=environ, timeout=300).returncode == 0  # the second time nothing is played
    assert before == {file: file.stat().st_mtime_ns for file in Path("there").glob("seed=*/*")}
    for seed in (0, 10):
        one, two = (json.loads(Path(f"{f}/seed={seed}/summary.json").read_text()) for f in ("here", "there"))
        assert one["regret"] == two["regret"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "ray"])
def test_a_launcher_whose_process_is_killed_says_so_and_goes_on(launcher, tmp_path):
    """joblib and submitit give up, with two lines; Ray plays the job again by itself."""
    if not sweeps._there(sweeps.LAUNCHERS[launcher][0]):
        pytest.skip(f"{launcher} is not installed")
    kill = {"_target_": "tests.killer.Kill", "at": 5, "seed": 10, "once": tmp_path / "once"}
    given = [f"+callbacks.kill.{key}={value}" for key, value in kill.items()]
    command = [sys.executable, "-m", "nbl", "-m", *QUICK, "seed=0,10,20", "out=s", f"hydra/launcher={launcher}"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "callbacks"), *sys.path])}
    if launcher != "ray":
        said = subprocess.run([*command, *given], env=environ, timeout=300, capture_output=True, text=True)
        assert said.returncode == 1 and "Traceback" not in said.stderr
        assert "lost a process" in said.stderr and "out=s goes on" in said.stderr
    said = subprocess.run([*command, *given], env=environ, timeout=300, capture_output=True, text=True)
    assert said.returncode == 0 and "3 of 3 runs are done" in said.stdout and (tmp_path / "once").exists()


@pytest.mark.slow
def test_a_search_finds_the_least_and_is_repeated_from_its_seed(capsys):
    pytest.importorskip("optuna")
    line = [*QUICK, "env.noise=interval(0.1,1.0)", "out=s", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3"]
    assert main(["-m", *line]) == 0
    found = json.loads(Path("s/optuna.json").read_text())
    assert found["best"]["value"] == min(trial["value"] for trial in found["trials"])
    capsys.readouterr()
    assert main(["-m", *line]) == 0
    assert capsys.readouterr().out.count("done before") == 3
    assert json.loads(Path("s/optuna.json").read_text()) == found
