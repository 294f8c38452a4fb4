"""Duels, against users and each other: what broke them once."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import nbl
from nbl.algorithms import GLMES, NDB, NVLDB, VACDB, NeuralLogUCB1
from nbl.envs import ClassDuel, Classification, DuelSquare, PreferenceLog
from nbl.types import NblError
from nbl_callbacks import VarianceWeighting

R = 2
SMALL = {"net": {"width": 8, "phi": 8}, "fit": {"steps": 3}}


def table():
    draw = np.random.default_rng(0)
    return {**{f"x{i}": draw.normal(size=40) for i in range(4)}, "label": draw.integers(0, 3, 40)}


@pytest.mark.parametrize("cls", [NVLDB, VACDB, GLMES, NeuralLogUCB1])
def test_variances_of_disjoint_contexts_are_the_same_in_blocks(cls):
    """env=duel_statlog hands out (x, k), and eps is 1 / sqrt(d) of the whole context either way."""
    found = []
    for blocks in (False, True):
        environment = (ClassDuel if cls.duel else Classification)(data=table(), blocks=blocks, replicas=R)
        options = {NVLDB: SMALL, NeuralLogUCB1: {"net": {"width": 8}}}.get(cls, {})
        module = cls(environment.dim, arms=3, replicas=R, blocks=environment.blocks, **options)
        weighting = VarianceWeighting(eps=None, source="model", mode="inverse" if cls.duel else "direct")
        nbl.fit(module.double(), environment, horizon=12, callbacks=[weighting])
        found.append(module.act(environment.contexts(20)).scores)
    torch.testing.assert_close(*found)


def play(module, environment, rounds, since=1):
    for t in range(since, since + rounds):
        x = environment.contexts(t)
        decision = module.act(x)
        module.observe(x, decision, environment.pull(decision.arms))
        module.learn()


def test_a_schedule_by_the_determinant_is_kept_by_the_last_layer_too():
    """Line 10 is inside the `if` of line 8, replica by replica."""
    module = NVLDB(4, replicas=R, retrain={"logdet": 4.0}, **SMALL).double()
    single = NVLDB(4, seed=1, retrain={"logdet": 4.0}, **SMALL).double()
    environment, alone = DuelSquare(3, 4, replicas=R), DuelSquare(3, 4, seed=1)
    idle = 0
    for t in range(1, 16):
        taken, theta = module.fit.taken.clone(), module.theta.clone()
        play(module, environment, 1, t)
        play(single, alone, 1, t)
        rested = (module.fit.taken == taken).squeeze(1)
        idle += int(rested.sum())
        assert torch.equal(module.theta[rested], theta[rested])
    assert idle
    torch.testing.assert_close(module.theta[1:], single.theta)


def test_the_last_layer_is_pulled_to_where_the_ridge_pulls():
    """Without a duel that tells anything, theta is the centre of the ridge."""
    for towards in ("start", "zero"):
        fit = {"steps": 1, "lr": 1e-9, "towards": towards}
        module = NVLDB(4, net={"width": 8, "phi": 8}, fit=fit)
        x = torch.randn(3, 4)
        module.observe(x, torch.tensor([[1, 1]]), 1.0)
        module.learn()
        centre = module.net.theta0[:, -8:] if towards == "start" else torch.zeros(1, 8)
        torch.testing.assert_close(module.theta, centre)


@pytest.mark.parametrize("rebuild", [True, False])
def test_data_kept_over_a_restart_narrow_the_new_features(rebuild):
    module, environment = NVLDB(4, replicas=R, rebuild=rebuild, **SMALL).double(), DuelSquare(3, 4, replicas=R)
    play(module, environment, 20)
    module.restart(keep_history=True)
    dphi = module.differences(module.history.data().inputs)
    V = torch.eye(8, dtype=torch.float64) + dphi.mT @ dphi
    torch.testing.assert_close(module.design.inverse, torch.linalg.inv(V))


@pytest.mark.parametrize(
    ("cls", "options", "says"),
    [
        (NVLDB, {"fit": {"ridge": 0.0}}, "ridge"),
        (NVLDB, {"net": {"kind": "ntk", "width": 8}}, "feature, mirrored or standard"),
        (NVLDB, {"members": 3}, "members"),
        (NDB, {"members": 3}, "members"),
        (NDB, {"nu": "much"}, "nu"),
        (VACDB, {"nu": float("inf")}, "nu"),
    ],
)
def test_what_a_duel_cannot_use_is_refused(cls, options, says):
    with pytest.raises(NblError, match=says):
        cls(4, **options)


def test_features_of_a_log_meet_by_name_and_the_winner_is_none_of_them():
    x = {f"{side}_{i}": np.arange(5.0) + i for side, order in (("a", (0, 1, 2)), ("b", (2, 0, 1))) for i in order}
    env = PreferenceLog(data={**x, "a_won": np.ones((5, 1))}, first="a_", second="b_", winner="a_won")
    assert env.dim == 3 and torch.equal(env.items[:, 0], env.items[:, 1])
    assert env.contexts(1).shape == (1, 2, 3) and env.pull(torch.tensor([[0, 1]])).reward.shape == (1,)


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        ({"a_0": np.ones(4)}, {"first": "a_", "second": "a_"}, "share the columns a_0"),
        ({"a_0": np.ones(4), "b_1": np.ones(4)}, {"first": "a_", "second": "b_"}, "'0', '1'"),
        ({"w": np.ones(3)}, {"winner": "w"}, "of one length"),
        ({"w": np.ones((4, 2))}, {"winner": "w"}, "4 rows"),
        ({"w": np.array(["a", "b", "a", "a"])}, {"winner": "w"}, "1/2 for a draw. It is text"),
        ({"chosen": np.full((4, 2), 1e200)}, {}, "Scale them"),
        ({"chosen": np.full((4, 2), 1e50)}, {"scale": False}, "Scale them"),
    ],
)
def test_odd_logs_are_refused_before_the_first_round(data, options, says):
    both = {"chosen": np.ones((4, 2)), "rejected": np.zeros((4, 2))}
    with pytest.raises(NblError, match=says):
        PreferenceLog(data={**both, **data}, **options)


@pytest.mark.parametrize("weight", [1e30, 3e38])
def test_a_weight_beyond_rounding_is_an_error_with_a_cure_or_harmless(weight):
    """Which of the two is up to the machine's rounding; a NaN that nobody hears of is neither."""
    module, environment = NVLDB(4, replicas=R, **SMALL), DuelSquare(3, 4, replicas=R)
    x = environment.contexts(1)
    try:
        for _ in range(3):
            module.observe(x, torch.tensor([[0, 1]] * R), torch.ones(R), weight)
            module.learn()
    except NblError as error:
        assert "scale" in str(error) or "lower" in str(error)
    else:
        assert module.net.theta.isfinite().all()


def test_a_parquet_log_is_read_in_the_columns_that_are_used(tmp_path):
    """Nested columns beside the embeddings are nobody's business; rows of unequal length are named."""
    vectors = [[1.0, 2.0], [2.0, 3.0]]
    file = tmp_path / "pairs.parquet"
    pq.write_table(pa.table({"chosen": vectors, "rejected": vectors, "meta": [{"a": 1}, {"a": 2}]}), file)
    assert PreferenceLog(path=file).dim == 2
    for rows, says in (([[1.0], [2.0, 3.0]], "rows of 1, 2 values"), ([None, [2.0, 3.0]], "rows without a value")):
        pq.write_table(pa.table({"chosen": rows, "rejected": vectors}), file)
        with pytest.raises(NblError, match=says) as error:
            PreferenceLog(path=file)
        assert "env.drop" not in str(error.value)
