"""A progress bar that counts rounds."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

import lightning as L
from lightning.pytorch.callbacks import ProgressBar


class BanditProgressBar(ProgressBar):
    """Round, phase (where the module has a `phase`), regret so far, rounds a second and time left; on a terminal a live
    bar, elsewhere a line every tenth.

    The regret shown is `trainer.callback_metrics[metric]`, where a logger has put one.

    Args:
        metric: the name of what is shown beside the round.
        refresh: seconds between two redraws.
        stream: where to draw; the standard error by default.
    """

    def __init__(self, metric: str = "regret/cumulative", refresh: float = 0.1, stream: TextIO | None = None) -> None:
        super().__init__()
        if refresh <= 0:
            raise ValueError(f"BanditProgressBar(refresh={refresh}): need seconds above 0, for example 0.1.")
        self.metric, self.refresh, self.stream = metric, refresh, stream or sys.stderr
        self._enabled = True
        self._module: Any = None
        self._bar: Any = None  # rich's Progress, on a terminal
        self._task: Any = None
        self._next, self._first, self._start, self._tenth = 0.0, 0, 0.0, 0

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._module = pl_module
        self._first, self._start, self._next = trainer.global_step, time.monotonic(), 0.0
        self._tenth = 10 * self._first // max(1, trainer.max_steps)
        if self._enabled and self.stream.isatty():
            self._open(trainer)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._enabled:
            return
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self.refresh
            self._draw(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._close(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._close(trainer)

    def _open(self, trainer: L.Trainer) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError as error:
            raise ImportError(
                "BanditProgressBar draws with rich, which is not installed: pip install 'nbl-callbacks[progress]'."
            ) from error
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(compact=True),
            console=Console(file=self.stream),
            auto_refresh=False,
        )
        self._task = self._bar.add_task("round", total=self._total(trainer), completed=self._first, values="")
        self._bar.start()

    def _draw(self, trainer: L.Trainer, last: bool = False) -> None:
        played, total = trainer.global_step, self._total(trainer)
        if self._bar is not None:
            self._bar.update(self._task, completed=played, values=self._values(trainer))
            self._bar.refresh()
            return
        tenth = 10 * played // total if total else 0
        if tenth > self._tenth or (last and played > self._first and self._tenth < 10):
            self._tenth = 10 if last else tenth
            print(f"round {played}/{total or '?'}  {self._values(trainer)}", file=self.stream, flush=True)

    def _values(self, trainer: L.Trainer) -> str:
        speed = (trainer.global_step - self._first) / max(1e-9, time.monotonic() - self._start)
        value = trainer.callback_metrics.get(self.metric)
        name = self.metric.split("/")[0]
        phase = getattr(self._module, "phase", 0)
        shown = f"phase {phase}  " if isinstance(phase, int) and phase else ""
        return shown + (f"{name} {float(value):.1f}  " if value is not None else "") + f"{speed:.0f} rounds/s"

    def _close(self, trainer: L.Trainer) -> None:
        if self._enabled:
            self._draw(trainer, last=True)
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @staticmethod
    def _total(trainer: L.Trainer) -> int | None:
        return trainer.max_steps if trainer.max_steps > 0 else None
