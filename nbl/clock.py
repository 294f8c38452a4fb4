"""What an algorithm costs: the process time of choosing and of learning, by block of rounds.

python scripts/train.py recipe=neural_es '+callbacks.clock={_target_:nbl.clock.Clock,file:timing.csv}'
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L

from nbl import results

COLUMNS = ("first_round", "rounds", "select_seconds", "update_seconds")


class Clock(L.Callback):
    """Times the three verbs, for all replicas together: `act` is selection, `observe` and `learn` are the update.

    Process time: what other processes do does not count, nor do the environment, logging and checkpoints. Greedy
    questions (`exploit=True`) belong to the logging. All replicas share a round, so a sample is a block of rounds.

    Args:
        file: where the table goes when the run ends.
        blocks: how many there are in the horizon.
    """

    def __init__(self, file: str | os.PathLike[str], blocks: int = 20) -> None:
        if blocks < 1:
            raise ValueError(f"Clock(blocks={blocks}): need a whole number, at least 1.")
        self.file, self.blocks = Path(file), blocks
        self.rows: list[list[float]] = []
        self.round, self.length = 0, 1

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.length = max(1, trainer.max_steps // self.blocks) if trainer.max_steps > 0 else 100
        for verb, column in (("act", 2), ("observe", 3), ("learn", 3)):
            setattr(pl_module, verb, self._timed(getattr(pl_module, verb), column))

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        for verb in ("act", "observe", "learn"):
            vars(pl_module).pop(verb, None)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.round % self.length == 0:
            self.rows.append([self.round + 1, 0, 0.0, 0.0])
        self.round += 1
        self.rows[-1][1] += 1

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        lines = [
            ",".join(COLUMNS),
            *(f"{first},{n},{select:.9f},{update:.9f}" for first, n, select, update in self.rows),
        ]
        if trainer.is_global_zero:
            results.write_text(self.file, "\n".join(lines) + "\n")

    def state_dict(self) -> dict[str, Any]:
        return {"round": self.round, "rows": [list(row) for row in self.rows]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.round, self.rows = state_dict["round"], [list(row) for row in state_dict["rows"]]

    def _timed(self, verb: Callable[..., Any], column: int) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            if options.get("exploit") or not self.rows:
                return verb(*args, **options)
            begun = time.process_time()
            try:
                return verb(*args, **options)
            finally:
                self.rows[-1][column] += time.process_time() - begun

        return timed
