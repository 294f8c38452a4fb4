"""Weights & Biases: on by default, offline without a login, never in the way. The run file is read back."""

import json
import struct
from pathlib import Path

import pytest

from nbl import loggers
from nbl.cli import main

wandb = pytest.importorskip("wandb")
pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")

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
