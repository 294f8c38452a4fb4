"""Logs, coins and off-policy estimates, used roughly."""

import math

import lightning as L
import numpy as np
import pytest
import torch

import nbl
from nbl.algorithms import LogisticUCB1
from nbl.checkpoint import RoundCheckpoint, find
from nbl.envs import LoggedReplay
from nbl.ope import evaluate
from nbl.types import NblError
from nbl_callbacks import DelayedFeedback


class Interrupted(LoggedReplay):
    """A signal comes while the third event of round `at` is being asked about."""

    at, trainer = 0, None

    def again(self, arms):
        other = super().again(arms)
        self.trainer.should_stop |= other is not None and self.t == self.at and self._reads == 2
        return other


def test_a_signal_between_two_events_costs_no_event_and_no_round(make_log, tmp_path):
    """The round that was not played is played anew after resuming, from its first event, and callbacks count it once:
    the run is the one that nothing interrupts.
    """
    log = make_log(600)

    def start():
        env = Interrupted(data=log, replicas=2)
        callbacks = [DelayedFeedback(6, law="uniform"), RoundCheckpoint(tmp_path, 1000)]
        return env, LogisticUCB1(env.dim, replicas=2).double(), callbacks

    class Meet(L.Callback):
        def setup(self, trainer, pl_module, stage):
            trainer.fit_loop.environment.trainer = trainer

    env, module, callbacks = start()
    whole = nbl.fit(module, env, 60, callbacks=[*callbacks[:1], Meet()])
    env, module, callbacks = start()
    events = whole.extra["events"]
    env.at = next(t for t in range(20, 60) if (events[:, t - 1] - events[:, t - 2]).max() > 4)
    with pytest.warns(UserWarning, match="not yet told"):
        cut = nbl.fit(module, env, 60, callbacks=[*callbacks, Meet()], enable_checkpointing=True)
    assert cut.played == env.at - 1
    env, module, callbacks = start()
    resume = {"resume": find(str(tmp_path)), "enable_checkpointing": True}
    rounds = nbl.fit(module, env, 60, callbacks=[*callbacks, Meet()], **resume)
    for name in ("arm", "reward"):
        assert torch.equal(getattr(rounds, name), getattr(whole, name)), name
    assert torch.equal(rounds.extra["events"], events)


def test_estimates_from_a_reduced_set_of_arms_are_refused(make_log):
    """Open Bandit offers the logged item of 80 and four others: a match, one time in five, would weigh 80."""
    log = LoggedReplay(data=make_log(50))
    log.complete = False
    with pytest.raises(NblError, match="alternatives=None"):
        evaluate(log, LogisticUCB1(log.dim))


@pytest.mark.parametrize("name", ["S", "kappa", "delta"])
@pytest.mark.parametrize("value", ["abc", None, math.nan])
def test_constants_that_are_no_numbers_are_named(name, value):
    with pytest.raises(NblError, match=rf"LogisticUCB1\({name}={value!r}\): need a number"):
        LogisticUCB1(3, **{name: value})


@pytest.mark.parametrize("columns", [{"reward": "action"}, {"reward": "propensity"}, {"propensity": "action"}])
def test_one_column_cannot_be_two_things(columns, make_log):
    with pytest.raises(NblError, match="columns of their own"):
        LoggedReplay(data=make_log(50), **columns)


def test_zero_propensities_say_how_to_leave_the_column_out(make_log):
    """Taken for context, it would tell the learner what was logged."""
    with pytest.raises(NblError, match="`drop`"):
        LoggedReplay(data={**make_log(50), "propensity": np.zeros(50)})
