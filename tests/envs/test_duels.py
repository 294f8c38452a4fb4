"""Duels: utilities, chances, both regrets, and logged comparisons."""

import numpy as np
import pytest
import torch

import nbl
from nbl.algorithms import NVLDB, MaxInP
from nbl.envs import DUELS, ClassDuel, DuelCosine, DuelSquare, PreferenceLog
from nbl.links import LINKS
from nbl.types import NblError

R, K, D = 3, 4, 6
FORMULAS = {
    "duel_cosine": lambda x, theta: torch.cos(3 * (theta @ x)),
    "duel_square": lambda x, theta: 10 * (theta @ x) ** 2,
    "duel_quadratic": lambda x, theta: x @ torch.outer(theta, theta) @ x,
}


@pytest.mark.parametrize("name", DUELS)
def test_utilities_are_the_papers(name):
    env = DUELS[name](arms=K, dim=D, replicas=R, seed=4)
    x = env.contexts(3)
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(R, K, dtype=torch.float64))
    assert env.theta.abs().max() <= 1 and torch.equal(env.theta[1:2], DUELS[name](arms=K, dim=D, seed=5).theta)
    for r in range(R):
        for k in range(K):
            torch.testing.assert_close(env.mean(x)[r, k], FORMULAS[name](x[r, k], env.theta[r]))


def test_both_regrets_and_the_variance():
    """Average: u* - (u_1 + u_2)/2. Weak: u* - max(u_1, u_2). Zero exactly where the best arm meets itself."""
    env = DuelSquare(arms=K, dim=D, replicas=R)
    u = env.mean(env.contexts(1))
    arms = torch.tensor([[0, 1], [2, 2], [3, 0]])
    feedback = env.pull(arms)
    for r, (i, j) in enumerate(arms.tolist()):
        assert feedback.regret[r] == pytest.approx(float(u[r].max() - (u[r, i] + u[r, j]) / 2))
        assert feedback.extra["weak_regret"][r] == pytest.approx(float(u[r].max() - max(u[r, i], u[r, j])))
    assert feedback.extra["variance"][1] == 0.25
    best = u.argmax(-1, keepdim=True).expand(R, 2)
    assert (env.regret(best) == 0).all() and env.pull(best).optimal.all()


@pytest.mark.parametrize("preference", LINKS)
def test_wins_come_with_the_chance_of_the_link(preference):
    """3000 replicas of one round: frequencies within 4 standard errors of g(u_1 - u_2), averaged."""
    env = DuelCosine(arms=2, dim=3, preference=preference, replicas=3000)
    env.contexts(1)
    arms = torch.tensor([[0, 1]]).expand(3000, 2).contiguous()
    gap = env.chance(arms) - env.pull(arms).reward
    assert abs(float(gap.mean())) < 4 * float(gap.std()) / 3000**0.5
    assert torch.allclose(env.chance(arms) + env.chance(arms.flip(1)), torch.ones(3000).double())


def test_arms_are_pairs():
    env = DuelSquare(replicas=2)
    env.contexts(1)
    for arms in (torch.tensor([0, 1]), torch.zeros(2, 3).long(), torch.zeros(2, 2), torch.full((2, 2), 5)):
        with pytest.raises(NblError, match="DuelSquare: arms"):
            env.pull(arms)
    with pytest.raises(NblError, match="btl, thurstone"):
        DuelSquare(preference="logit")


TABLE = {"a": np.arange(30.0), "b": np.arange(30.0)[::-1] ** 2, "label": np.arange(30) % 3}


def test_classes_as_duels():
    """The higher index beats the one before it with chance 0.7, or for certain; or the right class is the best."""
    env = ClassDuel(data=TABLE, replicas=2)
    assert (env.arms, env.dim) == (3, 6) and env.duel
    env.contexts(1)
    torch.testing.assert_close(env.chance(torch.tensor([[1, 0], [1, 2]])), torch.tensor([0.7, 0.3]).double())
    sure = ClassDuel(data=TABLE, replicas=2, preference="deterministic")
    sure.contexts(1)
    assert sure.chance(torch.tensor([[2, 0], [1, 1]])).tolist() == [1.0, 0.5]
    label = ClassDuel(data=TABLE, utility="label", step=2.0)
    label.contexts(1)
    right = label.labels[label._drawn]
    assert float(label.regret(torch.stack([right, right], -1))) == 0 and float(label._best()) == 2.0
    for options in ({"utility": "rank"}, {"step": 0.0}, {"preference": "coin"}):
        with pytest.raises(NblError):
            ClassDuel(data=TABLE, **options)


def log(n=40, d=3, seed=0):
    """Items with utility x_0; the better one is `chosen`."""
    x = np.random.default_rng(seed).normal(size=(n, 2, d))
    order = np.argsort(-x[..., 0], 1)
    x = np.take_along_axis(x, order[..., None], 1)
    return {"chosen": x[:, 0], "rejected": x[:, 1]}


def test_a_log_is_replayed_whatever_is_played():
    """Each row once a pass, in an order and with sides of the seed's own; what wins one way loses the other way."""
    data = log()
    env = PreferenceLog(data=data, replicas=2, scale=False)
    seen = []
    for t in range(1, 41):
        x = env.contexts(t)
        first, second = env.pull(torch.tensor([[0, 1], [1, 0]])), env.pull(torch.tensor([[1, 0], [0, 1]]))
        assert torch.equal(first.reward, 1 - second.reward) and first.regret is None
        winner = x[0, 0] if first.reward[0] == 1 else x[0, 1]
        seen.append(int(np.abs(data["chosen"] - winner.numpy()).sum(1).argmin()))
        np.testing.assert_allclose(data["chosen"][seen[-1]], winner, atol=1e-6)
        assert set(env.pull(torch.zeros(2, 2).long()).reward.tolist()) <= {0.0, 1.0}
    assert sorted(seen) == list(range(40)) and seen != list(range(40))
    with pytest.raises(NblError, match="40 comparisons"):
        env.contexts(41)


def test_a_log_from_columns_files_and_datasets(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Dataset

    data, wide = log(), {}
    for side, values in data.items():
        wide |= {f"{side}_{i}": values[:, i] for i in range(3)}
    wide["won"] = np.ones(40)
    pq.write_table(pa.table(wide), tmp_path / "pairs.parquet")
    lists = Dataset.from_dict({side: values.tolist() for side, values in data.items()})
    envs = [
        PreferenceLog(data=data),
        PreferenceLog(path=tmp_path / "pairs.parquet", winner="won"),
        PreferenceLog(data=lists),
    ]
    for env in envs:
        torch.testing.assert_close(env.contexts(7), envs[0].contexts(7))
        assert torch.equal(env.pull(torch.tensor([[0, 1]])).reward, envs[0].pull(torch.tensor([[0, 1]])).reward)


def test_a_log_teaches():
    """Played by NVLDB and by a linear learner: the favourite, put first, is the one that people prefer."""
    data = log(400)
    for module in (MaxInP(3, replicas=2), NVLDB(3, replicas=2, net={"width": 16}, fit={"steps": 5})):
        rounds = nbl.fit(module, PreferenceLog(data=data, replicas=2), 150)
        assert rounds.regret.isnan().all() and rounds.summary()["regret"]["mean"] != 0
        env = PreferenceLog(data=log(seed=1))
        agree = []
        for t in range(1, 41):
            x = env.contexts(t)
            mean = module.act(x.expand(2, -1, -1)).means
            agree.append((mean.argmax(-1) == env.mean(x).argmax(-1)).double())
        assert torch.stack(agree).mean() > 0.7  # 80 answers: a coin is at 0.7 with a chance of 0.0002


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"data": {"chosen": np.array(["a", "b"]), "rejected": np.array(["c", "d"])}}, "Embed it first"),
        ({"data": {"chosen": np.ones((4, 2))}}, "rejected"),
        ({"data": {**log(), "won": np.full(40, 2.0)}, "winner": "won"}, "1/2 for a draw"),
        ({"data": log(), "winner": "who"}, "no column 'who'"),
        ({"data": {"chosen": np.full((4, 2), np.nan), "rejected": np.ones((4, 2))}}, "not numbers"),
        ({"data": {"chosen": np.ones((4, 2)), "rejected": np.ones((4, 3))}}, "as long"),
        ({"data": {"chosen": np.ones((4, 2)), "rejected": np.ones((3, 2))}}, "of one length"),
        ({"data": log(), "horizon": 41}, "40 comparisons"),
        ({"path": "nowhere.parquet"}, "nowhere"),
    ],
)
def test_bad_logs_are_refused(options, says):
    with pytest.raises(NblError, match=says):
        PreferenceLog(**options)
