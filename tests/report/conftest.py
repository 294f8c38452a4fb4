"""Folders of runs, written without playing."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf


@pytest.fixture
def leave(tmp_path, monkeypatch):
    """Leaves a run as scripts/train.py does: `leave("a", rate=0.3, seeds=range(4))`."""
    monkeypatch.chdir(tmp_path)

    def write(
        name,
        recipe="lin_ucb",
        env="linear",
        rate=0.5,
        rounds=60,
        seeds=range(4),
        nu=1.0,
        horizon=None,
        regret=True,
        **more,
    ):
        folder, seeds = tmp_path / name, list(seeds)
        folder.mkdir(parents=True)
        problem = {"_target_": f"nbl.envs.{env}", "noise": more.pop("noise", 0.5)}
        if path := more.pop("path", None):
            problem["path"] = path
        config = {
            "recipe": recipe,
            "env": problem,
            "algorithm": {"_target_": "x", "nu": nu, "fit": {"lr": 0.1}},
            "choices": {"env": env, "algorithm": recipe},
            "callbacks": {"progress": {"_target_": "bar"}},
            "horizon": horizon or rounds,
            "replicas": len(seeds),
            "seed": seeds[0],
            "out": str(folder),
            **more,
        }
        OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
        each = [np.random.default_rng(seed).uniform(0, 1, rounds) for seed in seeds]
        lost = np.concatenate([(u < rate).astype(float) for u in each])
        column = lost if regret else np.full(len(lost), np.nan)
        pq.write_table(pa.table({"regret": column, "reward": 1 - lost}), folder / "rounds.parquet")
        summary = {"seeds": seeds, "wall_seconds": 1.5, "rounds_per_second": 40.0, "versions": {"torch": "2"}}
        (folder / "summary.json").write_text(json.dumps(summary))
        return folder

    return write
