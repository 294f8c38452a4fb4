"""What a run leaves behind: every round in a table, the curves, and a summary.

The `Recorder` rides along as a callback and only appends tensors; it looks at them on a cadence. Its state is in the
checkpoint, so a resumed run writes the same table as one never stopped.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import lightning as L
import torch
from torch import Tensor

from nbl.devices import Together
from nbl.metrics import CumulativeRegret, MeanReward, OptimalArmRate, SimpleRegret, summarise
from nbl.types import Round

if TYPE_CHECKING:
    import pyarrow as pa

_BASE = ("arm", "reward", "regret")
_CURVES = {
    "regret": "regret/cumulative",
    "weak_regret": "regret/weak",
    "simple": "regret/simple",
    "reward": "reward/mean",
    "optimal": "arm/optimal_rate",
}


@dataclass
class Rounds:
    """Every round of a run. Tensors are (R, T); `extra` has what the algorithm added (`width`, `mean`, `member`)."""

    seeds: tuple[int, ...]
    arm: Tensor
    reward: Tensor
    regret: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0
    memory: float | None = None  # MB, where it is not this process's own

    @classmethod
    def join(cls, parts: Sequence[Rounds]) -> Rounds:
        """The rounds of processes that shared out the replicas."""
        arm, reward, regret = (torch.cat([getattr(part, name) for part in parts]) for name in _BASE)
        extra = {name: torch.cat([part.extra[name] for part in parts]) for name in parts[0].extra}
        seeds = tuple(seed for part in parts for seed in part.seeds)
        return cls(seeds, arm, reward, regret, extra, parts[0].seconds)

    @property
    def played(self) -> int:
        return self.arm.shape[1]

    def cumulative(self) -> Tensor:
        """Regret summed up to each round.    -> (R, T)"""
        return self.regret.cumsum(1)

    def curve(self) -> tuple[str, Tensor]:
        """What a run is judged by, summed up to each round: `regret`, or `reward` where regret is not known."""
        if self.played and bool(self.regret.isnan().all()):
            return "reward", self.reward.double().cumsum(1)
        return "regret", self.cumulative()

    def table(self) -> pa.Table:
        """One row a replica and round: replica, seed, round, arm, reward, regret, then the rest."""
        import pyarrow as pa

        replicas, rounds = self.arm.shape
        columns = {
            "replica": torch.arange(replicas)[:, None].expand(replicas, rounds),
            "seed": torch.tensor(self.seeds)[:, None].expand(replicas, rounds),
            "round": torch.arange(1, rounds + 1)[None].expand(replicas, rounds),
            "arm": self.arm,
            "reward": self.reward,
            "regret": self.regret,
            **self.extra,
        }
        return pa.table({name: column.reshape(-1).numpy() for name, column in columns.items()})

    def summary(self) -> dict[str, Any]:
        """Totals a replica, with their mean, sd and 95% interval (Student t); null where one replica cannot tell."""
        weak = {"weak_regret": self.extra["weak_regret"]} if "weak_regret" in self.extra else {}  # of duels
        totals = {"regret": self.regret, **weak, "reward": self.reward}
        return {name: _describe(values.sum(1)) for name, values in totals.items()}


class Recorder(L.Callback):
    """Keeps every round, and logs the curves every `log_every` rounds (default: a hundredth of the horizon)."""

    def __init__(self, log_every: int | None = None) -> None:
        self.log_every = log_every
        self.rows: list[dict[str, float]] = []
        self.seeds: tuple[int, ...] = ()
        self._pending: list[dict[str, Tensor]] = []
        self._columns: dict[str, list[Tensor]] = {}
        self._kept = 0  # rounds in `_columns`
        self._seconds, self._since = 0.0, 0.0
        self._whole: Rounds | None = None  # of all processes, once the run has ended

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self.log_every is None:
            self.log_every = max(1, trainer.max_steps // 100) if trainer.max_steps > 0 else 100
        cast(Any, trainer).log_every_n_steps = self.log_every  # so that loggers receive what is logged, when it is
        self.seeds = tuple(cast(Any, pl_module).seeds)
        self._metrics = {
            "regret": CumulativeRegret(len(self.seeds)),
            "weak_regret": CumulativeRegret(len(self.seeds)),
            "simple": SimpleRegret(len(self.seeds)),
            "reward": MeanReward(len(self.seeds)),
            "optimal": OptimalArmRate(len(self.seeds)),
        }

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        played = cast(Round, outputs)
        self._pending.append(_row(played))
        assert self.log_every is not None
        if played.t % self.log_every == 0:
            self.rows.append(self._look(trainer, pl_module, played))
            pl_module.log_dict(self.rows[-1], on_step=True, on_epoch=False, batch_size=1)
        elif played.t == trainer.max_steps:  # the last round is off the cadence on which Lightning passes values on
            self.rows.append(self._look(trainer, pl_module, played))
            for logger in trainer.loggers:
                logger.log_metrics(self.rows[-1], step=batch_idx)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop_clock()
        if isinstance(trainer.strategy, Together):
            everyone = trainer.strategy.gather("end", trainer.global_step, (self.rounds, peak_memory_mb()))
            if everyone is not None:
                rounds, memory = zip(*everyone, strict=True)
                self._whole = rounds[0] if trainer.strategy.share.by_members else Rounds.join(rounds)
                self._whole.memory = sum(memory) if None not in memory else None

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop_clock()

    @property
    def rounds(self) -> Rounds:
        """What was played so far; once the run has ended, in all processes."""
        if self._whole is not None:
            return self._whole
        self._flush()
        columns = {name: torch.cat(chunks, dim=1) for name, chunks in self._columns.items()}
        empty = torch.zeros(len(self.seeds), 0)
        arm, reward, regret = (columns.pop(name, empty) for name in _BASE)
        return Rounds(self.seeds, arm, reward, regret, columns, self.seconds)

    @property
    def joined(self) -> bool:
        """Whether `rounds` is that of all processes: only in the first, once the run has ended."""
        return self._whole is not None

    @property
    def seconds(self) -> float:
        """Time spent playing, over all the runs this one was resumed from."""
        return self._seconds + (time.perf_counter() - self._since if self._since else 0.0)

    def state_dict(self) -> dict[str, Any]:
        self._flush()
        return {
            "columns": {name: torch.cat(chunks, dim=1) for name, chunks in self._columns.items()},
            "metrics": {name: metric.state_dict() for name, metric in self._metrics.items()},
            "rows": [dict(row) for row in self.rows],
            "kept": self._kept,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._columns = {name: [column.cpu()] for name, column in state_dict["columns"].items()}
        for name, saved in state_dict["metrics"].items():
            self._metrics[name].load_state_dict(saved)
        self.rows, self._pending = list(state_dict["rows"]), []
        self._kept, self._seconds = state_dict["kept"], state_dict["seconds"]

    def _stop_clock(self) -> None:
        self._seconds, self._since = self.seconds, 0.0

    def _flush(self) -> None:
        """Stack the pending rounds. A column that a round does not have is NaN there (widths in a warm-up, say)."""
        if not self._pending:
            return
        replicas, new = len(self.seeds), len(self._pending)
        missing = torch.full((replicas,), math.nan)
        for name in {**dict.fromkeys(self._columns), **{n: None for row in self._pending for n in row}}:
            if name not in self._columns:
                self._columns[name] = [missing[:, None].expand(replicas, self._kept)] if self._kept else []
            values = [row.get(name) for row in self._pending]
            like = next((v for v in values if v is not None), missing)
            stacked = torch.stack([missing.to(like.device) if v is None else v for v in values], dim=1).detach()
            if stacked.dtype in (torch.float16, torch.bfloat16):  # tables have no such numbers
                stacked = stacked.float()
            self._columns[name].append(stacked.cpu())
            if name in self._metrics and all(v is not None for v in values):
                self._metrics[name].update(self._columns[name][-1])
        self._kept += new
        self._pending = []

    def _look(self, trainer: L.Trainer, module: Any, played: Round) -> dict[str, float]:
        """The row of this round: what the metrics say, and the regret that greedy play would have now."""
        self._flush()
        environment = getattr(trainer.fit_loop, "environment", None)
        if environment is not None and played.feedback is not None and played.feedback.regret is not None:
            greedy = module.act(played.contexts, exploit=True, mask=played.mask).arms
            self._metrics["simple"].update(environment.regret(greedy).cpu())
        known = {key: self._metrics[name] for name, key in _CURVES.items() if self._metrics[name].update_called}
        mine = {key: metric.per_replica() for key, metric in known.items()}
        if "width" in self._columns:
            mine["width/played"] = self._columns["width"][-1][:, -1]
        mine |= module.diagnostics()
        whole = trainer.strategy.join("curves", played.t, mine) if isinstance(trainer.strategy, Together) else mine
        row: dict[str, float] = {"round": played.t}
        for name, values in whole.items():
            found = summarise(values)
            if name not in known or math.isfinite(found["mean"]):  # outside simulations there is no regret
                row[name] = found["mean"]
                if name == "regret/cumulative" and len(values) > 1:
                    row["regret/cumulative_sd"] = found["sd"]
        return row


def write(
    out: str | os.PathLike[str], rounds: Rounds, rows: Sequence[Mapping[str, float]], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write summary.json, rounds.parquet, metrics.csv and regret.png (reward.png where regret is not known), each whole
    or not at all; returns the summary.

    Args:
        out: the run's folder.
        rounds: what was played.
        rows: the curves, one dict a logged round.
        about: recipe, algorithm, env, horizon and replicas, as the summary names them.
    """
    import pyarrow.parquet as pq

    from nbl.report.plots import cumulative_curve

    folder = Path(out)
    speed = rounds.played / rounds.seconds if rounds.seconds > 0 else None
    summary: dict[str, Any] = {
        **{key: about[key] for key in ("recipe", "algorithm", "env", "horizon", "replicas")},
        "rounds": rounds.played,
        "seeds": list(rounds.seeds),
        **rounds.summary(),
        "wall_seconds": rounds.seconds,
        "rounds_per_second": speed,
        "replica_rounds_per_second": speed * len(rounds.seeds) if speed else None,
        "peak_memory_mb": rounds.memory or peak_memory_mb(),
        "versions": versions(),
    }
    summary = _without_nan(summary)
    table = rounds.table()
    title = f"{about['algorithm']} on {about['env']}"
    write_text(folder / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
    _atomic(folder / "rounds.parquet", lambda path: pq.write_table(table, path))
    write_text(folder / "metrics.csv", _csv(rows))
    what, curve = rounds.curve()
    _atomic(folder / f"{what}.png", lambda path: path.write_bytes(cumulative_curve(curve, title, what)))
    return summary


def write_text(file: Path, text: str) -> None:
    """The whole text or the old file, never half."""
    _atomic(file, lambda path: path.write_text(text))


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("nbl", "nbl-callbacks", "torch", "lightning", "torchmetrics", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "source"
    return found


def peak_memory_mb() -> float | None:
    """The most memory this process has held, in MB (on a GPU: the device's)."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 1e6
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def _row(played: Round) -> dict[str, Tensor]:
    """What is kept of a round. No value is looked at here: that would wait for the device."""
    decision, feedback = played.decision, played.feedback
    assert decision is not None and feedback is not None
    arms, reward, regret = decision.arms, feedback.reward, feedback.regret
    first = arms if arms.ndim == 1 else arms[:, 0]
    row = {"arm": first, "reward": reward, "regret": torch.full_like(reward, math.nan) if regret is None else regret}
    if arms.ndim == 2:
        row["arm_2"] = arms[:, 1]
    if feedback.optimal is not None:
        row["optimal"] = feedback.optimal
    for name, values in (("mean", decision.means), ("width", decision.widths)):
        if values is not None:  # (R, K), or of pairs (R, K, K)
            one = first if values.ndim == 2 else first * values.shape[-1] + arms[:, -1]
            row[name] = values.flatten(1).gather(1, one.unsqueeze(1)).squeeze(1)
    told = {name: value for name, value in feedback.extra.items() if value.shape == reward.shape}
    return row | decision.extra | told


def _describe(totals: Tensor) -> dict[str, Any]:
    found = summarise(totals)
    interval = [found["ci95_low"], found["ci95_high"]]
    return {"mean": found["mean"], "sd": found["sd"], "ci95": interval, "per_replica": totals.tolist()}


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: null says that there is no such number."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        kept = [_without_nan(item) for item in value]
        return None if kept and all(item is None for item in kept) else kept
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(rows: Sequence[Mapping[str, float]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _atomic(target: Path, write: Callable[[Path], object]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".part-") as folder:
        temporary = Path(folder) / target.name
        write(temporary)
        os.replace(temporary, target)
