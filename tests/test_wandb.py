"""Weights & Biases: on by default, offline without a login, never in the way. The run file is read back."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nbl import loggers
from nbl.cli import main

wandb = pytest.importorskip("wandb")
pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")

ROOT = Path(__file__).parent.parent
LINE = ["recipe=neural_ucb", "horizon=20", "replicas=2", "callbacks.progress=null", "algorithm.net.width=8", "out=a"]


@pytest.fixture(autouse=True)
def logged_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def records(file):
    """The records of a .wandb file: LevelDB's log format (blocks of 32 KiB; crc, length, type; then a protobuf)."""
    data, at, whole = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield pb.Record.FromString(whole)
            whole = b""


def name(item):
    return item.key or "/".join(item.nested_key)


def test_offline_run_has_curves_config_summary_and_plot(tmp_path, capfd):
    assert main(LINE) == 0
    captured = capfd.readouterr()
    (folder,) = Path("a/wandb").glob("offline-run-*")
    assert f"wandb sync {folder}" in captured.out
    assert "Traceback" not in captured.err and "wandb:" not in captured.err + captured.out
    (file,) = folder.glob("*.wandb")
    history, config, summary = {}, {}, {}
    for record in records(file):
        for item in record.history.item:
            history.setdefault(name(item), []).append(json.loads(item.value_json))
        for item in [*record.run.config.update, *record.config.update]:
            config[name(item)] = json.loads(item.value_json)
        for item in [*record.run.summary.update, *record.summary.update]:
            summary[name(item)] = json.loads(item.value_json)
    assert {"regret/cumulative", "regret/simple", "reward/mean", "width/played", "fit/loss", "round"} <= set(history)
    assert history["round"] == list(range(1, 21)) and "regret/plot/filenames" in history
    assert config["recipe"] == "neural_ucb" and config["horizon"] == 20
    expected = json.loads(Path("a/summary.json").read_text())
    assert summary["regret/mean"] == pytest.approx(expected["regret"]["mean"])
    assert history["regret/cumulative"][-1] == pytest.approx(expected["regret"]["mean"], rel=1e-5)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a"]


def test_a_resumed_run_keeps_its_identifier():
    assert main([*LINE, "+trainer.limit_train_batches=11"]) == 0
    assert main(["resume=a", "trainer.limit_train_batches=null"]) == 0
    found = {file.stem for file in Path("a/wandb").glob("offline-run-*/*.wandb")}
    assert len(found) == 1


def test_wandb_that_fails_to_start_does_not_stop_the_run(monkeypatch):
    def fail(**_):
        raise wandb.errors.CommError("no route to host")

    monkeypatch.setattr(wandb, "init", fail)
    with pytest.warns(UserWarning, match=r"WandbLogger did not start .*no route to host"):
        assert main(LINE) == 0
    assert Path("a/summary.json").exists()


def test_mode_follows_the_login_and_the_environment(tmp_path, monkeypatch):
    mode = lambda **k: loggers.wandb("a", "x", **k)._wandb_init["mode"]  # noqa: E731
    assert mode() == "offline"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password not-a-key\n")
    assert mode() == "online"
    assert mode(mode="offline") == "offline"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert mode() == "offline"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert loggers.wandb("a", "x") is None


def test_what_an_agent_of_the_sweep_file_starts(tmp_path):
    """docs/wandb_sweep.yaml expanded by wandb's own code, and run as the agent would: a run of the sweep, with its
    identifier, its parameters and the metric that the sweep makes small."""
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    sweep = yaml.safe_load((ROOT / "docs" / "wandb_sweep.yaml").read_text())
    assert sweep["method"] in ("grid", "random", "bayes") and sweep["metric"]["goal"] == "minimize"
    chosen = {"algorithm.nu": 0.0625, "seed": 1010}
    assert set(chosen) == set(sweep["parameters"])
    parts = utils.create_sweep_command_args({"args": {key: {"value": value} for key, value in chosen.items()}})
    parts |= {"program": [str(ROOT / sweep["program"])], "env": ["/usr/bin/env"]}
    command = []
    for word in utils.create_sweep_command(sweep["command"]):
        command += parts[word[2:-1]] if word.startswith("${") else [word]
    command[command.index("horizon=1000")] = "horizon=5"
    path = os.pathsep.join([str(ROOT), str(ROOT / "callbacks"), *sys.path])
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    agent = {"WANDB_MODE": "offline", "WANDB_SWEEP_ID": "sweep123", "WANDB_RUN_ID": "run456", "PYTHONPATH": path}
    subprocess.run(command, env={**os.environ, **agent, "PATH": programs}, check=True, timeout=240)
    (file,) = tmp_path.glob("runs/neural_ucb/*/wandb/offline-run-*/*.wandb")
    found = list(records(file))
    (run,) = {(r.run.run_id, r.run.sweep_id) for r in found if r.run.run_id}
    assert run == ("run456", "sweep123")
    config = {name(item): json.loads(item.value_json) for r in found for item in r.run.config.update}
    config |= {name(item): json.loads(item.value_json) for r in found for item in r.config.update}
    assert config["seed"] == 1010 and config["algorithm"]["nu"] == 0.0625
    assert sweep["metric"]["name"] in {name(item) for r in found for item in r.history.item}
