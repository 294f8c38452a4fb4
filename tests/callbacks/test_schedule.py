"""Retraining happens when the schedule says so, and at no other time; observations are never lost."""

import pytest
import torch

import nbl
from nbl.algorithms import NeuralTS, Uniform
from nbl.envs import Linear, ZhouH1
from nbl_callbacks import DoublingTrick, RetrainSchedule, Unsuitable


def learned(tape):
    return [batch.t for batch in tape.rounds if batch.learn]


def test_every_n_rounds(play):
    module, tape = play([RetrainSchedule(every=7)], "neural_ucb")
    assert learned(tape) == [7, 14, 21, 28] and module.history.n == 30


def test_geometric_times(play):
    """1, then each the ceiling of 1.5 times the one before, at least one later."""
    assert learned(play([RetrainSchedule(factor=1.5)], "neural_ucb")[1]) == [1, 2, 3, 5, 8, 12, 18, 27]


def test_determinant_growth(play):
    """Between two retrainings the determinant of no replica grew by the factor before the last of these rounds."""
    module, tape = play([RetrainSchedule(growth=1.5)], "neural_ucb", horizon=60)
    assert 1 < len(learned(tape)) < 60 and learned(tape)[0] == 1
    assert len(learned(tape)) <= 1 + 2 * float(module.logdet().max()) / torch.tensor(1.5).log()


def test_an_algorithm_that_grows_after_learning_grows_all_the_same(play):
    """NeuralTS puts a gradient into its matrix once it has learned; a round without learning must not hold it up."""
    made = NeuralTS(3, replicas=2, net={"width": 4}, fit={"steps": 1}), ZhouH1(arms=4, dim=3, replicas=2)
    module, tape = play([RetrainSchedule(growth=1.5)], made, horizon=40)
    assert len(learned(tape)) > 1 and module.pending.shape[1] == 0


def test_a_restart_begins_the_schedule_anew(play):
    for order in (1, -1):
        callbacks = [DoublingTrick(first=8, factor=5), RetrainSchedule(factor=2.0)][::order]
        assert learned(play(callbacks, "neural_ucb", horizon=20)[1]) == [1, 2, 4, 8, 9, 10, 12, 16]


@pytest.mark.parametrize("options", [{"every": 3}, {"factor": 1.5}, {"growth": 1.3}])
def test_resumed_between_retrainings(options, resumes):
    resumes(lambda: [RetrainSchedule(**options)], "neural_ucb", horizon=16, step=2)


def test_growth_needs_a_confidence_matrix():
    with pytest.raises(Unsuitable, match="Informed; Uniform has no `logdet`"):
        nbl.fit(Uniform(3), Linear(arms=4, dim=3), 5, callbacks=RetrainSchedule(growth=2.0))


@pytest.mark.parametrize("bad", [{"every": 0}, {"factor": 1.0}, {"growth": 0.5}, {"every": 2, "factor": 2.0}])
def test_bad_arguments(bad):
    with pytest.raises(ValueError, match="RetrainSchedule"):
        RetrainSchedule(**bad)
