"""All together: an ensemble with a G-optimal warm-up inside each doubling phase, with delay, stopped anywhere."""

import itertools

import pytest
import torch

from nbl_callbacks import DelayedFeedback, DoublingTrick, GOptimalWarmup, RegretPlot, RetrainSchedule, round_design

PARTS = {
    "doubling": lambda: DoublingTrick(first=8, factor=2.2, scale={"members": 2.0, "nu": 0.02}),
    "warmup": lambda: GOptimalWarmup(tau=5),
    "delay": lambda: DelayedFeedback(3, "geometric", seed=2),
}


@pytest.mark.parametrize("made", ["lin_es", "glm_es", "neural_es"])
def test_resumed_at_any_round(made, resumes, tmp_path):
    """Phases begin at rounds 1, 9, 18: in a warm-up, a phase or a delay, the rounds are those of an unbroken run."""

    def callbacks():
        return [
            *(part() for part in PARTS.values()),
            RetrainSchedule(every=2),
            RegretPlot(tmp_path / "a.png", every=99),
        ]

    module, tape = resumes(callbacks, made, horizon=26)
    assert module.phase == 3 and module.round == 26 and module.members == 6  # 2 log 21
    pulls = [torch.bincount(tape.arms[start : start + 5, 0], minlength=5) for start in (0, 8, 17)]
    assert torch.equal(pulls[0], pulls[1]) and torch.equal(pulls[0], pulls[2]) and pulls[0].sum() == 5


def test_the_order_of_callbacks_does_not_matter(play):
    """A recipe's user cannot choose it."""
    runs = [play([PARTS[name]() for name in order], horizon=26)[1].arms for order in itertools.permutations(PARTS)]
    assert all(torch.equal(arms, runs[0]) for arms in runs)


def test_from_the_command_line(tmp_path, monkeypatch):
    import json

    from nbl.cli import main

    monkeypatch.chdir(tmp_path)
    quick = ["recipe=neural_es", "horizon=40", "replicas=2", "logger=none", "callbacks.progress=null"]
    put_in = ["+callbacks=[doubling,g_optimal,delay,retrain,plot,settle]", "callbacks.doubling.first=15"]
    bend = ["callbacks.warmup.tau=6", "algorithm.warmup=0", "algorithm.fit.steps=2"]
    assert main([*quick, *put_in, *bend, "out=a", "checkpoint.every=10"]) == 0
    assert json.loads((tmp_path / "a/summary.json").read_text())["horizon"] == 40
    assert main(["recipe=neural_es", put_in[0], "resume=a", "logger=none"]) == 0  # nothing left to play
    assert main(["recipe=neural_es", "callbacks=variance", "resume=a"]) == 2  # another problem
    assert main([*quick, "callbacks=doublin", "out=b"]) == 2
    assert main([*quick, "callbacks=doubling", "out=c"]) == 0  # the plus may be left out
    assert main([*quick, "+callbacks=variance", "out=d"]) == 2  # names what NeuralES lacks


def test_every_file_of_callbacks_composes_and_builds():
    from hydra.utils import instantiate

    from nbl import config

    for name in config.choices("callbacks"):
        made = config.compose(["recipe=neural_es", f"+callbacks={name}"]).callbacks
        assert "progress" in made and len(made) == 2
        for part in made.values():
            instantiate(part, _convert_="all")


def test_pulls_are_whole_in_every_phase():
    """What a warm-up of five rounds rests on: rounding to fewer pulls than the support has points."""
    assert round_design(torch.full((2, 7), 1 / 7), 5).sum(-1).tolist() == [5, 5]
