"""What a run leaves behind says what was played."""

import csv
import json
import math
from pathlib import Path

import lightning as L
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from nbl import results
from nbl.algorithms import LinUCB, NeuralES, Uniform
from nbl.envs import Quadratic, ZhouH1
from nbl.loop import BanditLoop
from nbl.types import Decision, Feedback, Round


def play(environment, module, horizon, tmp_path, recorder=None, **kwargs):
    recorder = recorder or results.Recorder()
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": False,
    }
    options = {"default_root_dir": tmp_path, "accelerator": "cpu", **quiet, **kwargs}
    trainer = L.Trainer(max_steps=horizon, max_epochs=-1, callbacks=[recorder], **options)
    trainer.fit_loop = BanditLoop(trainer, environment)
    trainer.fit(module)
    return recorder


@pytest.fixture
def recorder(tmp_path):
    environment = ZhouH1(arms=4, dim=5, replicas=3, seed=2)
    return play(environment, LinUCB(dim=5, arms=4, replicas=3, seed=2), 60, tmp_path, results.Recorder(log_every=7))


def about(**changes):
    return {"recipe": "r", "algorithm": "a", "env": "e", "horizon": 60, "replicas": 3, **changes}


def test_the_table_has_a_row_a_replica_and_round(recorder):
    table = recorder.rounds.table()
    assert table.column_names[:6] == ["replica", "seed", "round", "arm", "reward", "regret"]
    assert {"width", "mean"} <= set(table.column_names) and table.num_rows == 180
    assert table["replica"].to_pylist() == [r for r in range(3) for _ in range(60)]
    assert table["seed"].to_pylist() == [2 + r for r in range(3) for _ in range(60)]
    assert table["round"].to_pylist() == list(range(1, 61)) * 3


def test_the_rounds_are_those_that_were_played(recorder):
    """Replayed by hand, without a Trainer."""
    environment, module = ZhouH1(arms=4, dim=5, replicas=3, seed=2), LinUCB(dim=5, arms=4, replicas=3, seed=2)
    for t in range(60):
        contexts = environment.contexts(t + 1)
        decision = module.act(contexts)
        feedback = environment.pull(decision.arms)
        module.observe(contexts, decision, feedback)
        module.learn()
        assert torch.equal(recorder.rounds.arm[:, t], decision.arms)
        assert torch.equal(recorder.rounds.reward[:, t], feedback.reward)
        assert torch.equal(recorder.rounds.regret[:, t], feedback.regret)
        assert torch.equal(
            recorder.rounds.extra["width"][:, t], decision.widths.gather(1, decision.arms[:, None])[:, 0]
        )


def test_curves_are_logged_on_the_cadence_and_equal_the_table(recorder):
    assert [row["round"] for row in recorder.rows] == [*range(7, 61, 7), 60]  # and the last
    total = recorder.rounds.cumulative()
    for row in recorder.rows:
        assert row["regret/cumulative"] == pytest.approx(float(total[:, int(row["round"]) - 1].mean()))
        assert row["regret/cumulative_sd"] == pytest.approx(float(total[:, int(row["round"]) - 1].std()))
        assert 0 <= row["arm/optimal_rate"] <= 1 and row["regret/simple"] >= 0 and row["width/played"] > 0


def test_loggers_receive_every_row(tmp_path):
    """Lightning has a cadence of its own (log_every_n_steps): the two must fall together."""
    logger = CSVLogger(tmp_path, name="", version="log")
    environment = ZhouH1(arms=4, dim=5, replicas=2)
    recorder = play(environment, Uniform(dim=5, replicas=2), 50, tmp_path, results.Recorder(5), logger=logger)
    with open(tmp_path / "log" / "metrics.csv") as file:
        logged = list(csv.DictReader(file))
    assert [float(row["round"]) for row in logged] == [row["round"] for row in recorder.rows] == list(range(5, 51, 5))
    for row, kept in zip(logged, recorder.rows, strict=True):
        assert float(row["regret/cumulative"]) == pytest.approx(kept["regret/cumulative"], rel=1e-5)


def test_recording_does_not_change_what_is_played(tmp_path):
    """The greedy look-ahead on the cadence is pure."""
    runs = []
    for every in (1, 1000):
        environment = Quadratic(arms=5, dim=4, replicas=2, noise=0.1)
        module = NeuralES(dim=4, arms=5, replicas=2, fixed_arms=True, members=3, net={"width": 8}, fit={"steps": 2})
        runs.append(play(environment, module, 30, tmp_path, results.Recorder(every)).rounds)
    assert torch.equal(runs[0].arm, runs[1].arm) and torch.equal(runs[0].reward, runs[1].reward)


def test_state_is_safe_to_load_and_gives_the_same_table(recorder, tmp_path):
    torch.save(recorder.state_dict(), tmp_path / "state")
    other = results.Recorder()
    other.seeds, other._metrics = recorder.seeds, recorder._metrics
    other.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert other.rounds.table().equals(recorder.rounds.table()) and other.rows == recorder.rows


def test_files(recorder, tmp_path):
    summary = results.write(tmp_path / "out", recorder.rounds, recorder.rows, about())
    text = (tmp_path / "out" / "summary.json").read_text()
    assert json.loads(text) == json.loads(json.dumps(summary))
    named = ["recipe", "algorithm", "env", "horizon", "replicas", "rounds", "seeds", "regret", "reward"]
    assert list(summary)[:9] == named
    speeds = ["wall_seconds", "rounds_per_second", "replica_rounds_per_second"]
    assert list(summary)[9:] == [*speeds, "peak_memory_mb", "versions"]
    assert list(summary["regret"]) == ["mean", "sd", "ci95", "per_replica"] == list(summary["reward"])
    low, high = summary["regret"]["ci95"]
    assert low < summary["regret"]["mean"] < high
    assert pq.read_table(tmp_path / "out" / "rounds.parquet").equals(recorder.rounds.table())
    assert (tmp_path / "out" / "regret.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(Path(tmp_path / "out").glob(".*"))


def test_one_replica_has_no_spread_and_the_json_says_null(tmp_path):
    recorder = play(ZhouH1(arms=4, dim=5), Uniform(dim=5), 10, tmp_path)
    results.write(tmp_path / "out", recorder.rounds, recorder.rows, about(replicas=1))
    found = json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert found["regret"]["sd"] is None and found["regret"]["ci95"] is None and found["regret"]["mean"] > 0


def test_columns_may_come_and_go_and_a_duel_has_two_arms():
    """A warm-up has no widths; what is missing is NaN, never zero."""
    recorder = results.Recorder()
    recorder.seeds, recorder._metrics = (0, 1), {}
    for t in range(1, 7):
        arms, widths = torch.tensor([[0, 1], [1, 2]]), torch.full((2, 3), float(t)) if t > 2 else None
        decision = Decision(arms, torch.zeros(2, 3), widths=widths, extra={"late": torch.ones(2)} if t > 4 else {})
        feedback = Feedback(torch.ones(2))
        recorder._pending.append(results._row(Round(t, torch.zeros(2, 3, 1), decision=decision, feedback=feedback)))
        if t in (2, 3):
            recorder._flush()
    rounds = recorder.rounds
    assert rounds.arm.tolist() == [[0] * 6, [1] * 6] and rounds.extra["arm_2"].tolist() == [[1] * 6, [2] * 6]
    assert rounds.extra["width"][0].isnan().tolist() == [True, True] + [False] * 4
    assert rounds.extra["late"][0].isnan().tolist() == [True] * 4 + [False] * 2
    assert rounds.regret.isnan().all() and math.isnan(rounds.summary()["regret"]["mean"])


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    file = tmp_path / "x.json"
    results.write_text(file, "old")
    with pytest.raises(RuntimeError):
        results._atomic(file, lambda path: (path.write_text("ne"), (_ for _ in ()).throw(RuntimeError()))[0])
    assert file.read_text() == "old" and [f.name for f in tmp_path.iterdir()] == ["x.json"]
