"""Against calvera 1.0.2 (extra `[bench]`), which has NeuralUCB and NeuralTS with a diagonal matrix.

Both sides take 100 full-batch steps of Adam on a network of the same shape every round. calvera trains as its manual
has it, through a Trainer, an epoch a step; beside it its training step in a bare loop, which its users do not have.
"""

from __future__ import annotations

import importlib
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import lightning as L
import torch
from torch import nn

from nbl.benchmark.measure import Job, Player, Row, back_all, in_turn
from nbl.benchmark.problems import ADAM, neural
from nbl.run import hush

ABSENT = (
    "calvera is not installed: pip install --no-deps calvera==1.0.2, or 'nbl[bench]' where there is a torchvision for "
    "this build of torch: one for another build breaks torchmetrics."
)


def calvera(
    times: Sequence[int] = (50, 200),
    steps: int = 100,
    replicas: int = 20,
    names: Sequence[str] = ("NeuralUCB", "NeuralTS"),
) -> Iterator[Row]:
    """d = 20, K = 4, m = 100."""
    for name in names:
        thompson = name == "NeuralTS"
        module = "neural_ts_bandit" if thompson else "neural_ucb_bandit"
        try:
            found = importlib.import_module(f"calvera.bandits.{module}")
        except ImportError:
            yield Row(f"run of {name}", "skipped", math.nan, "calvera 1.0.2", note=ABSENT)
            return
        kind = getattr(found, name + "Bandit")
        fit = {**ADAM, "steps": steps}
        for t in times if not thompson else times[-1:]:
            one = neural(fit=fit, thompson=thompson).until(t, every=None)
            many = neural(fit=fit, replicas=replicas, thompson=thompson).until(t, every=None)
            with warnings.catch_warnings():
                hush()
                bare = _round(kind, one, t, steps, trainer=False)
                jobs = {"one": one.play, "many": many.play, "bare": bare}
                taken = in_turn(jobs, 3, 0.1, most=5, between=back_all([one, many]))
                theirs = in_turn({"whole": _round(kind, one, t, steps, trainer=True)}, 1, 0.0)["whole"]
            what = f"round of {name}"
            yield Row(what, f"t={t}", taken["one"], "calvera 1.0.2", theirs / taken["one"], 10.0, 4.0)
            yield Row(what, f"t={t}", taken["one"], "calvera, bare loop", taken["bare"] / taken["one"])
            each = taken["many"] / replicas
            case = f"t={t}, one of {replicas} replicas"
            yield Row(what, case, each, "calvera 1.0.2", theirs / each, 50.0, 15.0)
            yield Row(what, case, each, "calvera, bare loop", taken["bare"] / each)


def _round(kind: Any, player: Player, t: int, steps: int, trainer: bool) -> Job:
    """A round after t others: choose, record, train."""
    for name in ("calvera", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    net = nn.Sequential(nn.Linear(20, 100), nn.ReLU(), nn.Linear(100, 1))
    big = 10**9
    bandit = kind(20, net, train_batch_size=big, early_stop_threshold=None, initial_train_steps=big)
    contexts = player.environment.contexts(1).float()
    bandit.record_feedback(torch.randn(t, 1, 20), torch.randn(t, 1))

    def learn() -> None:
        if trainer:
            quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
            made = L.Trainer(max_epochs=steps, accelerator="cpu", enable_model_summary=False, **quiet)  # type: ignore[arg-type]
            made.fit(bandit)
            return
        data, _, rewards, _ = bandit.buffer.get_all_data()
        optimizer = bandit.configure_optimizers()["optimizer"]
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(bandit.theta_t(data).view(-1), rewards.view(-1))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def play() -> None:
        with torch.enable_grad():
            chosen, _ = bandit(contexts)
            bandit.record_feedback(contexts[chosen.bool()].unsqueeze(1), torch.zeros(1, 1))
            learn()

    return play
