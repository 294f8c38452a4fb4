"""Warm-ups play what they say, for as long as they say, and begin again with each phase."""

import warnings

import lightning as L
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

from nbl.algorithms import LinUCB
from nbl.envs import Linear, ZhouH1
from nbl_callbacks import (
    DoublingTrick,
    GOptimalWarmup,
    RandomWarmup,
    RoundRobinWarmup,
    Unsuitable,
    g_optimal,
    round_design,
)
from nbl_callbacks.warmup import spread


def counts(arms, K):
    return torch.stack([torch.bincount(a, minlength=K) for a in arms.T])


def test_round_robin_plays_each_arm_in_turn(play):
    _, tape = play([RoundRobinWarmup(2)], horizon=12)
    assert tape.arms[:10].T.tolist() == [[0, 1, 2, 3, 4] * 2] * 2


def test_random_is_uniform_and_a_function_of_the_seeds(play):
    _, tape = play([RandomWarmup(300)], horizon=300)
    assert (counts(tape.arms, 5) > 30).all() and not torch.equal(tape.arms[:, 0], tape.arms[:, 1])
    assert torch.equal(play([RandomWarmup(300)], horizon=300)[1].arms, tape.arms)
    assert not torch.equal(play([RandomWarmup(300, seed=1)], horizon=300)[1].arms, tape.arms)
    alone = (LinUCB(3, arms=5, seed=1), Linear(arms=5, dim=3, seed=1))
    assert torch.equal(play([RandomWarmup(300)], alone, horizon=300)[1].arms[:, 0], tape.arms[:, 1])


def test_g_optimal_plays_the_rounded_design(play):
    """With arms that stay, the pulls of each arm after tau rounds are the rounded design, replica by replica."""
    _, tape = play([GOptimalWarmup(tau=23)], horizon=30)
    pulls = round_design(g_optimal(tape.rounds[0].contexts).weights, 23)
    assert torch.equal(counts(tape.arms[:23], 5), pulls)


def test_lemma_b4(play):
    """tau = ceil(1.5 iota^2 d / mu_min) = 1.5 * 16 * 3 = 72 rounds make every width at most 1/iota."""
    warmup = GOptimalWarmup(iota=4.0)
    _, tape = play([warmup], horizon=80)
    assert warmup.length == 72
    x = tape.rounds[0].contexts.double()
    played = torch.stack([x[torch.arange(2), arms] for arms in tape.arms[:72]], 1)
    width = ((x @ torch.linalg.inv(played.mT @ played)) * x).sum(-1).sqrt()
    assert (width <= 1 / 4.0).all()


def test_a_replica_that_needs_fewer_rounds_is_free_sooner(play):
    """The floor makes totals differ between replicas: each replica's warm-up has the length it has alone."""
    warmup = GOptimalWarmup(tau=12, min_pulls=2)
    _, tape = play([warmup], horizon=30)
    totals = round_design(g_optimal(tape.rounds[0].contexts).weights, 12, min_pulls=2).sum(-1)
    assert warmup.length == totals.max()
    assert torch.equal((warmup.order >= 0).sum(-1), totals)
    for r in range(2):
        pulls = torch.bincount(tape.arms[: totals[r], r], minlength=5)
        assert (pulls >= 2).all() and pulls.sum() == totals[r]


def test_where_arms_change_the_widest_is_played(play):
    """Greedy: argmax x^T V^-1 x, V = I + what was played. From round 2 on, when the change is seen."""
    _, tape = play([GOptimalWarmup(tau=20)], "neural_ucb", horizon=25)
    V = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1)
    for t, batch in enumerate(tape.rounds[:20]):
        x = batch.contexts.double()
        if t:
            assert torch.equal(batch.decision.arms, ((x @ torch.linalg.inv(V)) * x).sum(-1).argmax(-1)), t
        played = x[torch.arange(2), batch.decision.arms]
        V = V + played[:, :, None] * played[:, None, :]


def test_every_beginning_of_the_order_looks_like_the_whole():
    pulls = torch.tensor([[10, 5, 1, 0], [4, 4, 4, 2]])
    order = spread(pulls)
    assert order.shape == (2, 16) and (order[1, 14:] == -1).all()
    for r in range(2):
        assert torch.equal(torch.bincount(order[r][order[r] >= 0], minlength=4), pulls[r])
    half = torch.bincount(order[0, :8], minlength=4)
    assert (half - pulls[0] / 2).abs().max() <= 1


def test_a_long_warmup_is_cut_with_a_warning(play):
    """At the horizon, and at the end of a phase."""
    with pytest.warns(UserWarning, match=r"100 rounds is longer than the 20 rounds"):
        _, tape = play([GOptimalWarmup(tau=100)], horizon=20)
    pulls = round_design(g_optimal(tape.rounds[0].contexts).weights, 20)
    assert torch.equal(counts(tape.arms, 5), pulls)
    warmup = RoundRobinWarmup(3)
    with pytest.warns(UserWarning, match=r"15 rounds is longer than the 10 rounds"):
        play([DoublingTrick(first=10, factor=3), warmup], horizon=12)
    assert warmup.length == 15 and warmup.round == 2


WARMUPS = {
    "round_robin": lambda: RoundRobinWarmup(1),
    "random": lambda: RandomWarmup(6),
    "g_optimal": lambda: GOptimalWarmup(tau=6),
}


@pytest.mark.parametrize("name", ["round_robin", "g_optimal"])
@pytest.mark.parametrize("first", [True, False])
def test_each_phase_begins_with_a_warmup_whatever_the_order_of_callbacks(name, first, play):
    """Phases begin at rounds 1, 9 and 21 (8 * 2.5^i)."""
    warmup, doubling = WARMUPS[name](), DoublingTrick(first=8, factor=2.5)
    _, tape = play([doubling, warmup] if first else [warmup, doubling], horizon=30)
    n = 5 if name == "round_robin" else 6
    for start in (9, 21):
        assert torch.equal(tape.arms[start - 1 : start - 1 + n], tape.arms[:n])


@pytest.mark.parametrize("name", WARMUPS)
@pytest.mark.parametrize("made", ["lin_es", "neural_ucb"])
def test_resumed_inside_a_warmup(name, made, resumes):
    resumes(lambda: [WARMUPS[name]()], made, horizon=10)


def test_the_design_is_solved_once(play, monkeypatch):
    import nbl_callbacks.warmup as module

    calls = []
    monkeypatch.setattr(module, "g_optimal", lambda *a: calls.append(1) or g_optimal(*a))
    play([DoublingTrick(first=5, factor=2), GOptimalWarmup(tau=4)], horizon=40)
    assert len(calls) == 1


def test_masked_arms_are_left_out(play):
    class Mask(L.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            batch.mask = torch.tensor([True, False, True, True, False]).expand(2, 5)

    for warmup in (RandomWarmup(20), GOptimalWarmup(tau=20)):
        assert set(play([Mask(), warmup], horizon=20)[1].arms.flatten().tolist()) <= {0, 2, 3}


def test_an_ordinary_batch_is_refused_by_name():
    trainer = L.Trainer(max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        callbacks=[RoundRobinWarmup()], accelerator="cpu", enable_model_summary=False)  # fmt: skip
    with pytest.raises(Unsuitable, match="RoundRobinWarmup works on a bandit's rounds"):
        trainer.fit(BoringModel())


@pytest.mark.parametrize("bad", [{}, {"tau": 3, "iota": 1}, {"tau": -1}, {"tau": 5, "min_pulls": "many"}])
def test_bad_arguments(bad):
    with pytest.raises(ValueError, match="GOptimalWarmup"):
        GOptimalWarmup(**bad)


def test_no_warning_where_there_is_room(play):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*warm-up.*")
        play([GOptimalWarmup(tau=10)], (LinUCB(3), ZhouH1(arms=4, dim=3)), horizon=12)
