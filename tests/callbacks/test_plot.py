"""The picture is there while the run goes on, and its curve is the regret."""

import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers.logger import DummyLogger

from nbl_callbacks import RegretPlot


class Wall(DummyLogger):
    """A logger that takes pictures."""

    def __init__(self):
        super().__init__()
        self.pictures = []

    def log_image(self, key, images, **_):
        self.pictures.append((key, Path(images[0]).read_bytes()[:8]))

    def __getattr__(self, name):
        raise AttributeError(name)


def test_written_and_logged_on_a_cadence(play, tmp_path):
    wall = Wall()
    play([RegretPlot(tmp_path / "deep" / "live.png", every=10)], horizon=35, logger=wall)
    assert [key for key, _ in wall.pictures] == ["regret"] * 4  # rounds 10, 20, 30 and the end
    assert all(head.startswith(b"\x89PNG") for _, head in wall.pictures)
    assert [f.name for f in (tmp_path / "deep").iterdir()] == ["live.png"]


def test_the_default_place_is_the_trainers_folder(play, tmp_path):
    play([RegretPlot()], horizon=10, default_root_dir=tmp_path)
    assert (tmp_path / "regret.png").exists()


@pytest.mark.parametrize("horizon", [7, 30])
def test_the_curve_is_the_cumulative_regret(horizon, play, tmp_path):
    """However few points are kept."""
    plot = RegretPlot(tmp_path / "a.png", points=8)
    _, tape = play([plot], horizon=horizon)
    regret = torch.stack([batch.feedback.regret for batch in tape.rounds]).double().cumsum(0)
    assert len(plot.curve) <= 8
    assert torch.allclose(torch.stack(plot.curve), regret[plot.step - 1 :: plot.step][: len(plot.curve)])


def test_resumed(play, resumes, tmp_path):
    plots = []
    make = lambda: [plots.append(RegretPlot(tmp_path / "a.png", points=4)) or plots[-1]]  # noqa: E731
    resumes(make, horizon=12, step=3)
    assert all(torch.equal(torch.stack(p.curve), torch.stack(plots[0].curve)) for p in plots)


def test_without_matplotlib_the_error_names_the_extra(play, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plot = RegretPlot(tmp_path / "a.png")
    with pytest.raises(ImportError, match=r"nbl-callbacks\[plot\]"):
        play([plot], horizon=10)
    assert plot.round == 0  # before the first round, not at the first picture
