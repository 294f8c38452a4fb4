"""Delayed feedback: told late, once, as of the round it was played in, and never lost."""

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel

from nbl.algorithms import LinES
from nbl.envs import Linear
from nbl_callbacks import DelayedFeedback, DoublingTrick, Unsuitable


class Heard(LinES):
    """Notes at which round which reward was told."""

    def commit(self, contexts, arms, reward, weight):
        self.__dict__.setdefault("told", []).append((self.round, reward.clone()))
        super().commit(contexts, arms, reward, weight)


def heard(horizon, *callbacks, play, **options):
    made = Heard(3, arms=5, replicas=2, members=4), Linear(arms=5, dim=3, replicas=2)
    return play(list(callbacks), made, horizon=horizon, **options)


@pytest.mark.parametrize("law", ["constant", "uniform", "geometric", "batch"])
def test_everything_is_told_once_and_rounds_are_counted_once(law, play):
    """Every reward arrives, by the end of the run at the latest, with the draws of the round it was played in."""
    delay = DelayedFeedback(4, law)
    module, tape = heard(30, delay, play=play)
    assert module.round == 30 and not delay.out
    rewards = {batch.t: batch.feedback.reward for batch in tape.rounds}
    assert sorted(t + 1 for t, _ in module.told) == list(range(1, 31))  # `round` is that of playing while told
    assert all(torch.equal(reward.squeeze(-1), rewards[t + 1].to(reward)) for t, reward in module.told)


def test_a_closed_form_learner_ends_where_it_would_without_delay(play):
    """Sums do not mind the order: the same rounds told late give the same estimates, perturbations included."""
    made = [(LinES(3, arms=5, replicas=2, members=4), Linear(arms=5, dim=3, replicas=2)) for _ in range(2)]

    class Same(L.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            batch.arms = torch.full((2,), batch.t % 5)

    one, _ = play([Same()], made[0])
    two, _ = play([Same(), DelayedFeedback(6, "geometric")], made[1])
    assert torch.allclose(one.theta, two.theta, atol=1e-10) and torch.allclose(one.moment, two.moment, atol=1e-10)


def test_a_delay_of_n_is_told_at_the_end_of_round_t_plus_n(play):
    class Ledger(DelayedFeedback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            super().on_train_batch_end(trainer, module, outputs, batch, index)
            assert module.n == max(0, batch.t - 4)

    class Counts(LinES):
        n = 0

        def commit(self, contexts, arms, reward, weight):
            self.n += 1
            super().commit(contexts, arms, reward, weight)

    module, _ = play([Ledger(4)], (Counts(3, arms=5, replicas=2, members=4), Linear(arms=5, dim=3, replicas=2)))
    assert module.n == 30


def test_no_delay_is_no_change(play, equal_states):
    one, a = play([DelayedFeedback(0)], "neural_es")
    two, b = play([], "neural_es")
    assert torch.equal(a.arms, b.arms) and equal_states(one, two)


def test_laws_have_their_mean():
    for law in ("constant", "uniform", "geometric"):
        delays = [DelayedFeedback(8, law, seed=3).delay(t) for t in range(1, 4001)]
        assert min(delays) >= 0 and sum(delays) / 4000 == pytest.approx(8, rel=0.1), law
    assert [DelayedFeedback(3, "batch").delay(t) for t in range(1, 7)] == [2, 1, 0, 2, 1, 0]


@pytest.mark.parametrize("law", ["constant", "geometric", "batch"])
@pytest.mark.parametrize("made", ["lin_es", "neural_es", "neural_ucb"])
def test_resumed_inside_a_delay(law, made, resumes):
    resumes(lambda: [DelayedFeedback(4, law)], made, horizon=16, step=2)


def test_a_run_that_stops_early_keeps_what_is_out(play, tmp_path):
    """It is in the checkpoint, and said."""

    class Stop(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            trainer.should_stop = batch.t == 10

    delay = DelayedFeedback(4)
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    with pytest.warns(UserWarning, match="4 rounds not yet told"):
        play([delay, Stop(), saver], enable_checkpointing=True)
    state = torch.load(tmp_path / "step=10.ckpt", weights_only=True)["callbacks"][delay.state_key]
    assert len(state["out"]) == len(delay.out) == 4


def test_a_restart_does_not_lose_what_is_out(play):
    module, _ = play([DoublingTrick(first=10, factor=3), DelayedFeedback(4)], "neural_es", horizon=20)
    assert module.history.n == 14  # rounds 11 to 20, and 7 to 10, told after the restart


def test_an_unsuitable_module_is_named_at_setup():
    trainer = L.Trainer(max_steps=1, logger=False, callbacks=[DelayedFeedback()], enable_checkpointing=False,
                        enable_progress_bar=False, accelerator="cpu", enable_model_summary=False)  # fmt: skip
    with pytest.raises(Unsuitable, match="Deliverable; BoringModel has no `deliver`"):
        trainer.fit(BoringModel())


@pytest.mark.parametrize("bad", [{"rounds": -1}, {"law": "sometimes"}, {"rounds": 0, "law": "batch"}])
def test_bad_arguments(bad):
    with pytest.raises(ValueError, match="DelayedFeedback"):
        DelayedFeedback(**bad)
