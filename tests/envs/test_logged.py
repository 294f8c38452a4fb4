"""Logged replay: what is accepted, what is refused, what happens when the log ends."""

import math
import os

import numpy as np
import pytest
import torch

import nbl
from nbl.algorithms import LinUCB, NeuralLogTS1, Uniform
from nbl.envs import LoggedReplay, OpenBandit
from nbl.types import NblError

DATA = os.environ.get("NBL_DATA_DIR")


def test_a_round_is_a_match(make_log):
    """What is played is what was logged, with the reward that came back then; no event is used twice in a replica."""
    log = make_log(300)
    env = LoggedReplay(data=log, replicas=2)
    rounds = nbl.fit(Uniform(env.dim, replicas=2), env, 60)
    assert rounds.regret.isnan().all()
    events = rounds.extra["events"].long()
    assert (events[:, 1:] > events[:, :-1]).all()
    for r in range(2):
        rows = env.order[r, events[r] - 1].long()
        assert torch.equal(rounds.arm[r], env.chosen[rows]) and torch.equal(rounds.reward[r], env.reward[rows])
    assert not torch.equal(env.order[0], env.order[1])


def test_uniform_play_of_a_uniform_log_accepts_one_in_k(make_log):
    """K = 3: about a third of the events, and the mean reward of the log, each within four standard errors."""
    log = make_log(3000)
    env = LoggedReplay(data=log)
    rounds = nbl.fit(Uniform(env.dim), env, 700)
    read = int(rounds.extra["events"][0, -1])
    assert abs(700 / read - 1 / 3) < 4 * math.sqrt(2 / 9 / read)
    assert abs(rounds.reward.mean() - log["reward"].mean()) < 4 * 0.5 / math.sqrt(700)


def test_rejection_undoes_a_skewed_log(make_log):
    """Always arm 0, in a log that plays it three times as often in one kind of context as in the other, and both kinds
    come as often: matches see the kinds three to one, accepted ones evenly (z below 4).
    """
    log, seen = make_log(3000, skewed=True), {}
    for accept in ("match", "rejection"):
        env, kinds = LoggedReplay(data=log, accept=accept), []
        for t in range(1, 121):
            asked = env.contexts(t)
            while (other := env.again(torch.tensor([0]))) is not None:
                asked = other
            env.pull(torch.tensor([0]))
            kinds.append(asked[0, 0, 0] > 0)
        seen[accept] = sum(kinds) / 120
    assert seen["match"] > 0.65 and abs(seen["rejection"] - 0.5) < 4 * 0.5 / math.sqrt(120)


def test_a_learner_learns_from_a_log(make_log):
    env = LoggedReplay(data=make_log(2000), replicas=3)
    rounds = nbl.fit(LinUCB(env.dim, replicas=3, nu=1.0), env, 300)
    assert (rounds.reward[:, -150:].mean(1) > 0.65).all()  # the paying action pays 0.8, chance 0.37


def test_a_replica_equals_a_run_of_its_own(make_log):
    log, options = make_log(1000), {"net": {"width": 6}, "fit": {"steps": 3}, "nu": 0.02}
    env = LoggedReplay(data=log, replicas=3, seed=5)
    together = nbl.fit(NeuralLogTS1(env.dim, replicas=3, seed=5, **options).double(), env, 80)
    for r in range(3):
        one = LoggedReplay(data=log, seed=5 + r)
        alone = nbl.fit(NeuralLogTS1(env.dim, seed=5 + r, **options).double(), one, 80)
        assert torch.equal(together.extra["events"][r], alone.extra["events"][0])
        assert torch.equal(together.arm[r], alone.arm[0])


def test_the_run_ends_with_the_log(make_log):
    """With a warning and the rounds that were accepted; `repeat` goes on."""
    log = make_log(60)
    env = LoggedReplay(data=log)
    with pytest.warns(UserWarning, match="has ended: replica 0 has read all 60 events"):
        rounds = nbl.fit(Uniform(env.dim), env, 100)
    assert 5 < rounds.played < 40
    again = LoggedReplay(data=log, repeat=True)
    assert nbl.fit(Uniform(again.dim), again, 100).played == 100
    assert int(again.cursor) > 2 * 60


def test_a_policy_that_never_matches_is_stopped(make_log):
    """It plays action 2 wherever the log has another."""
    log = make_log(40)
    keep = log["action"] != 2
    log = {name: np.asarray(column)[keep] for name, column in log.items()}
    log["action"][0] = 2
    env = LoggedReplay(data=log, repeat=True)
    env.contexts(1)
    with pytest.raises(NblError, match="no match in two passes"):
        while (env.again(torch.tensor([2]) if int(env._row) != 0 else torch.tensor([0]))) is not None:
            pass


def test_resuming_goes_on_with_the_next_event(make_log):
    """State is the cursor: a copy that loads it reads the same events; another log is refused."""
    log = make_log(500)
    env = LoggedReplay(data=log)
    nbl.fit(LinUCB(env.dim), env, 30)
    other = LoggedReplay(data=log)
    other.load_state_dict(env.state_dict())
    assert torch.equal(env.contexts(31), other.contexts(31)) and torch.equal(env.cursor, other.cursor)
    assert torch.equal(env.contexts(31), env.contexts(31))  # asked again, the same
    with pytest.raises(NblError, match="not the log"):
        LoggedReplay(data=make_log(500, seed=1)).load_state_dict(env.state_dict())


def damaged(log, **columns):
    return {**log, **columns}


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        ({"propensity": np.zeros(50)}, {}, "50 of 50 propensities are not in"),
        ({"propensity": np.full(50, 2.0)}, {}, "not in \\(0, 1\\]"),
        ({"propensity": np.full(50, np.nan)}, {}, "missing"),
        ({"reward": np.full(50, np.nan)}, {}, "missing"),
        ({"reward": np.array(["a"] * 50)}, {}, "finite numbers"),
        ({"action": np.zeros(50, int)}, {}, "1 class"),
        ({"action": np.zeros(49, int)}, {}, "one length"),
        ({}, {"reward": "clicks"}, "no column 'clicks'"),
        ({}, {"propensity": "p"}, "no column 'p'"),
        ({}, {"accept": "some"}, "accept"),
        ({}, {"accept": "rejection", "propensity": None}, "needs the propensities"),
        ({}, {"drop": ["nothing"]}, "no such column"),
        ({}, {"encode": "hash"}, "encode"),
    ],
)
def test_damaged_logs_are_refused(make_log, change, options, says):
    with pytest.raises(NblError, match=says):
        LoggedReplay(data=damaged(make_log(50), **change), **options)


def test_what_a_log_cannot_tell(make_log):
    env = LoggedReplay(data=make_log(50))
    with pytest.raises(NblError, match="no round is open"):
        env.pull(torch.tensor([0]))
    env.contexts(1)
    wrong = (env.chosen[env._row] + 1) % 3
    with pytest.raises(NblError, match="not played"):
        env.pull(wrong)
    with pytest.raises(NblError, match="no regret"):
        env.regret(wrong)


@pytest.mark.data
@pytest.mark.skipif(not DATA, reason="needs NBL_DATA_DIR")
def test_open_bandit_is_prepared_as_the_paper_says():
    """10 000 events, 38 clicks, five different items an event with the logged one among them in any place, d = 42."""
    env = OpenBandit(replicas=2)
    assert (env.rows, env.arms, env.dim, int(env.reward.sum())) == (10_000, 5, 42, 38)
    assert (env.offered.sort(1).values.diff(dim=1) > 0).all()
    counts = env.chosen.bincount(minlength=5).double()
    assert ((counts - 2000).square() / 2000).sum() < 18.5  # chi-square, 4 degrees of freedom, 0.1%
    others = env.affinity.gather(1, env.offered).scatter(1, env.chosen[:, None], math.inf).amin(1)
    left = env.affinity.scatter(1, env.offered, -math.inf).amax(1)
    assert (others >= left).all()  # none that was left out is more affine
    assert env.event(torch.arange(9)).isfinite().all() and env.propensity.unique().tolist() == [0.0125]
    assert OpenBandit(alternatives=None).arms == 80


def test_open_bandit_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("NBL_DATA_DIR", raising=False)
    with pytest.raises(NblError, match="no data for obd_random_all"):
        OpenBandit()
    with pytest.raises(NblError, match="need the folder"):
        OpenBandit(path=tmp_path / "nowhere")
    with pytest.raises(NblError, match="alternatives"):
        OpenBandit(alternatives=-1)
