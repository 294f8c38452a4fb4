"""A run ends when it has settled, not before, and a new phase has settled nothing."""

import lightning as L
import pytest
import torch

from nbl.types import Feedback
from nbl_callbacks import DelayedFeedback, DoublingTrick, RoundRobinWarmup, StopWhenSettled


class Script(L.Callback):
    """Gives rounds the regret in a list."""

    def __init__(self, regret):
        self.regret = regret

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        batch.feedback = Feedback(batch.feedback.reward, torch.tensor([0.0, self.regret(batch.t)]))


def test_stops_when_the_greedy_arm_has_not_changed(play):
    """Stopped after round n, the arm is the same in rounds n - 20 to n, and was another one before."""

    class Greedy(L.Callback):
        def __init__(self):
            self.arms = []

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            self.arms.append(module.act(batch.contexts, exploit=True).arms)

    greedy = Greedy()
    _, tape = play([greedy, StopWhenSettled(patience=20)], horizon=2000)
    arms = torch.stack(greedy.arms)
    assert 20 < len(tape.rounds) < 2000 and (arms[-21:] == arms[-1]).all()
    assert len(arms) == 21 or not torch.equal(arms[-22], arms[-21])


def test_arms_that_change_never_settle(play):
    assert len(play([StopWhenSettled(patience=3)], "neural_ucb", horizon=40)[1].rounds) == 40


def test_stops_when_every_replica_is_flat(play):
    """Regret 1 until round 25, then 0.1: the mean of 10 rounds is at most 0.1 first after round 35."""
    script = Script(lambda t: 1.0 if t <= 25 else 0.1)
    _, tape = play([script, StopWhenSettled(patience=10, slope=0.1001)], horizon=100)
    assert len(tape.rounds) == 35


def test_a_restart_unsettles(play):
    """Flat from the first round: settled after 10 rounds of a phase, phases begin at rounds 1, 9 and 33."""
    script = Script(lambda t: 0.0)
    trick = DoublingTrick(first=8, factor=4)
    assert len(play([script, trick, StopWhenSettled(patience=10, slope=0.5)], horizon=100)[1].rounds) == 18


@pytest.mark.parametrize("slope", [None, 0.5])
def test_a_warm_up_settles_nothing(slope, play):
    """Forty forced rounds; then 10 flat ones, or at least 11 looks at the greedy arm."""
    callbacks = [Script(lambda t: 0.0), RoundRobinWarmup(times=8), StopWhenSettled(patience=10, slope=slope)]
    n = len(play(callbacks, horizon=1000)[1].rounds)
    assert n == 50 if slope else 51 <= n < 1000


class Never(L.Callback):
    """Holds every round, and tells nothing."""

    def on_train_batch_start(self, trainer, module, batch, index):
        batch.hold = True


@pytest.mark.parametrize("slope", [None, 0.5])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("law", ["constant", "batch"])
def test_nothing_settles_before_something_is_told(slope, first, law, play):
    """Told first in round 41 (batch: 40); what comes after counts, whichever callback is asked first."""
    delay, settle = DelayedFeedback(40, law), StopWhenSettled(patience=10, slope=slope)
    both = [settle, delay] if first else [delay, settle]
    n = len(play([Script(lambda t: 0.0), *both], horizon=1000)[1].rounds)
    assert n in (49, 50, 51) if slope else 50 <= n < 1000
    assert len(play([Script(lambda t: 0.0), Never(), StopWhenSettled(10, slope)], horizon=60)[1].rounds) == 60


@pytest.mark.parametrize("options", [{"patience": 8}, {"patience": 6, "slope": 0.3}])
def test_resumed(options, play, tmp_path):
    """It stops after the same round."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    saver = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    _, tape = play([StopWhenSettled(**options), saver], horizon=400, enable_checkpointing=True)
    n = len(tape.rounds)
    assert n < 400
    for at in {1, n // 2, n - 1}:
        _, rest = play([StopWhenSettled(**options)], horizon=400, resume=tmp_path / f"step={at}.ckpt")
        assert rest.rounds[-1].t == n, at


def test_bad_arguments():
    with pytest.raises(ValueError, match="patience=0"):
        StopWhenSettled(patience=0)
