"""The bar counts rounds, costs little, and never depends on nbl or on rich being there."""

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from nbl_callbacks import BanditProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def play(bar, rounds=100, metrics=None):
    trainer = SimpleNamespace(global_step=0, max_steps=rounds, callback_metrics=metrics or {})
    bar.on_train_start(trainer, None)
    for step in range(1, rounds + 1):
        trainer.global_step = step
        bar.on_train_batch_end(trainer, None, None, None, step - 1)
    bar.on_train_end(trainer, None)
    return bar.stream.getvalue()


def test_without_a_terminal_a_line_every_tenth():
    lines = play(
        BanditProgressBar(refresh=1e-9, stream=io.StringIO()), metrics={"regret/cumulative": torch.tensor(3.25)}
    )
    lines = lines.splitlines()
    assert (
        len(lines) == 10 and lines[0].startswith("round 10/100  regret 3.2") and lines[-1].startswith("round 100/100")
    )
    assert all("rounds/s" in line for line in lines)


def test_a_fast_run_still_prints_its_last_round():
    assert play(BanditProgressBar(refresh=60, stream=io.StringIO())).splitlines()[-1].startswith("round 100/100")


def test_on_a_terminal_a_live_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    text = play(BanditProgressBar(stream=Terminal()), metrics={"regret/cumulative": torch.tensor(3.25)})
    assert "100/100" in text and "regret" in text and "rounds/s" in text


def test_disabled_is_silent():
    bar = BanditProgressBar(stream=io.StringIO())
    bar.disable()
    assert play(bar) == ""


def test_without_rich_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ImportError, match=r"nbl-callbacks\[progress\]"):
        play(BanditProgressBar(stream=Terminal()))


def test_bad_refresh():
    with pytest.raises(ValueError, match="refresh=0"):
        BanditProgressBar(refresh=0)


def test_the_package_does_not_import_nbl():
    code = "import sys, nbl_callbacks; assert 'nbl' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
