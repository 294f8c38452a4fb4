"""Synthetic problems: what is drawn, what is paid, and that choices change neither."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from scipy import stats

from nbl.envs import ENVIRONMENTS, FixedArms, Linear, ZhouH1
from nbl.envs.synthetic import ball
from nbl.rng import Streams
from nbl.types import NblError

R, SEED = 3, 11
RECIPES = Path(__file__).parents[2] / "recipes" / "env"

# The table of the papers, written anew for one arm x (d,) and one replica's parameters.
FORMULAS = {
    "linear": lambda x, p: x @ p["theta"],
    "logistic": lambda x, p: 1 / (1 + torch.exp(-(x @ p["theta"]))),
    "distance": lambda x, p: -torch.dist(x, p["theta"]),
    "quadratic": lambda x, p: 0.01 * x @ p["A"] @ p["A"].T @ x,
    "gcb_h1": lambda x, p: 4 * (p["a"] @ x) ** 2,
    "gcb_h2": lambda x, p: 4 * torch.sin(p["a"] @ x) ** 2,
    "gcb_h3": lambda x, p: torch.linalg.norm(p["A"] @ x),
    "zhou_h1": lambda x, p: 10 * (p["a"] @ x) ** 2,
    "zhou_h2": lambda x, p: x @ p["A"].T @ p["A"] @ x,
    "zhou_h3": lambda x, p: torch.cos(3 * (p["a"] @ x)),
}
SIZES = {"gcb": (4, 10, 0.1), "zhou": (4, 20, 1.0)}  # the others have 50, 20, 0.5


@pytest.fixture(params=ENVIRONMENTS)
def name(request):
    return request.param


@pytest.fixture
def env(name):
    return ENVIRONMENTS[name](replicas=R, seed=SEED)


def arms(*values):
    return torch.tensor(values)


def test_mean_is_the_formula_of_the_paper(name, env):
    """Against the formula written by hand, arm by arm."""
    x = env.contexts(5)
    mean = env.mean(x)
    for r in range(R):
        parameters = {key: value[r] for key, value in env.named_buffers() if value.ndim}
        for k in range(env.arms):
            torch.testing.assert_close(mean[r, k], FORMULAS[name](x[r, k], parameters), rtol=1e-12, atol=1e-12)


def test_defaults_and_recipe_are_those_of_the_paper(name, env):
    """Sizes and noise, in Python and in recipes/env, and the recipe builds the class."""
    sizes = SIZES.get(name.split("_")[0], (50, 20, 0.5))
    assert (env.arms, env.dim, env.noise) == sizes
    built = instantiate(OmegaConf.load(RECIPES / f"{name}.yaml"), replicas=R, seed=SEED)
    assert type(built) is ENVIRONMENTS[name] and (built.arms, built.dim, built.noise) == sizes
    assert {"arms", "dim", "noise", "replicas", "seed"} <= set(inspect.signature(type(built)).parameters)


def test_a_recipe_for_every_environment():
    """None is missing and none is left over."""
    assert set(ENVIRONMENTS) <= {path.stem for path in RECIPES.glob("*.yaml")}


def test_contexts_are_float64_of_norm_one(env):
    """All these problems live on the unit sphere."""
    x = env.contexts(1)
    assert x.shape == (R, env.arms, env.dim) and x.dtype == torch.float64
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(R, env.arms, dtype=torch.float64))


def test_contexts_change_with_the_round_unless_arms_are_fixed(env):
    """`fixed_arms` is a promise to the history, which then counts per arm."""
    first, second = env.contexts(1), env.contexts(2)
    assert env.fixed_arms == isinstance(env, FixedArms)
    assert (first is second) if env.fixed_arms else not torch.isclose(first, second).any()


def test_contexts_are_uniform_on_the_sphere():
    """For x uniform on the sphere of R^d, (x_1 + 1) / 2 is Beta((d-1)/2, (d-1)/2)."""
    env = ZhouH1(arms=500, dim=4)
    x = torch.cat([env.contexts(t)[0] for t in range(1, 11)])
    for i in range(4):
        assert stats.kstest(((x[:, i] + 1) / 2).numpy(), stats.beta(1.5, 1.5).cdf).pvalue > 1e-4


def test_ball_is_uniform_in_the_ball():
    """The radius r of a uniform point has r^d uniform on (0, 1), and its direction has mean zero."""
    x = ball(Streams(range(4000), "test"), "a", 0, 3)
    assert stats.kstest((x.norm(dim=-1) ** 3).numpy(), "uniform").pvalue > 1e-4
    assert (x.mean(0).abs() < 5 * (1 / 5 / 4000) ** 0.5).all()  # each coordinate has variance 1 / (d + 2)


def test_parameters_have_their_law():
    """Norms of theta* and a; standard deviations of the entries of A."""
    built = {name: kind(replicas=200) for name, kind in ENVIRONMENTS.items()}
    for name, norm in {"linear": 1.0, "logistic": 4.0, "distance": 1.0}.items():
        assert torch.allclose(built[name].theta.norm(dim=-1), torch.tensor(norm, dtype=torch.float64))
    assert torch.allclose(built["gcb_h1"].a.norm(dim=-1), torch.ones(200, dtype=torch.float64))
    assert (built["zhou_h1"].a.norm(dim=-1) < 1).all()
    for name, sd in {"quadratic": 1.0, "gcb_h3": 0.5, "zhou_h2": 1.0}.items():
        assert stats.kstest(built[name].A.flatten().numpy() / sd, "norm").pvalue > 1e-4


def test_a_replica_equals_the_run_of_its_own(name, env):
    """Replica r of a batch is the problem with that seed: same contexts, noise and regret."""
    alone = [ENVIRONMENTS[name](replicas=1, seed=SEED + r) for r in range(R)]
    for t in (1, 2, 300):
        x = env.contexts(t)
        batch = env.pull(arms(0, 1, 2))
        for r in range(R):
            assert torch.equal(alone[r].contexts(t)[0], x[r])
            single = alone[r].pull(arms(r))
            torch.testing.assert_close(single.reward[0], batch.reward[r], rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(single.regret[0], batch.regret[r], rtol=1e-12, atol=1e-13)


def test_asking_twice_gives_the_same(env):
    """A round can be opened and played again, after any other."""
    x, first = env.contexts(7), env.pull(arms(1, 1, 1))
    again = env.pull(arms(1, 1, 1))
    env.contexts(8)
    env.pull(arms(0, 0, 0))
    assert torch.equal(env.contexts(7), x)
    for other in (again, env.pull(arms(1, 1, 1))):
        assert torch.equal(other.reward, first.reward) and torch.equal(other.regret, first.regret)


def test_choices_do_not_shift_the_stream(name):
    """Two algorithms with the same seed and different choices meet the same contexts and the same noise."""
    careful, bold = (ENVIRONMENTS[name](replicas=R, seed=SEED) for _ in range(2))
    for t in range(1, 6):
        assert torch.equal(careful.contexts(t), bold.contexts(t))
        careful.pull(arms(0, 0, 0))
        bold.pull(arms(t % 4, 2, 3))
    careful.contexts(6), bold.contexts(6)
    assert torch.equal(careful.pull(arms(3, 2, 1)).reward, bold.pull(arms(3, 2, 1)).reward)


def test_regret_is_pseudo_regret(env):
    """Best mean minus mean: never negative, zero for the best arm and only there, free of noise."""
    for t in (1, 2, 3):
        mean = env.mean(env.contexts(t))
        for k in range(env.arms):
            played = torch.full((R,), k)
            feedback = env.pull(played)
            assert (feedback.regret >= 0).all()
            torch.testing.assert_close(feedback.regret, mean.amax(1) - mean[:, k])
            assert torch.equal(feedback.optimal, mean.argmax(1) == played)
            assert torch.equal(env.regret(played), feedback.regret)
        best = env.pull(mean.argmax(1))
        assert (best.regret == 0).all() and best.optimal.all()


def test_noise_is_gaussian_with_the_sd_promised(env):
    """Reward minus mean, over rounds and arms, is N(0, noise^2)."""
    residuals = []
    for t in range(1, 301):
        mean = env.mean(env.contexts(t))
        for k in range(4):
            residuals.append(env.pull(torch.full((R,), k)).reward - mean[:, k])
    assert stats.kstest(torch.cat(residuals).numpy() / env.noise, "norm").pvalue > 1e-4


def test_without_noise_the_reward_is_the_mean(name):
    """noise=0 is a deterministic problem."""
    env = ENVIRONMENTS[name](noise=0.0, replicas=R)
    mean = env.mean(env.contexts(1))
    assert torch.equal(env.pull(arms(0, 1, 2)).reward, mean[range(R), [0, 1, 2]])


def test_seeds_are_different_problems(env):
    """No two replicas share parameters, contexts or noise."""
    x = env.contexts(1)
    reward = env.pull(arms(0, 0, 0)).reward
    drawn = [value for _, value in env.named_buffers() if value.ndim] + [x, reward]
    for value in drawn:
        assert not torch.isclose(value[0], value[1]).all()


def test_state_travels_by_state_dict(name, env):
    """Parameters are buffers: a problem of another seed becomes this one, and the round is kept."""
    env.contexts(9)
    other = ENVIRONMENTS[name](replicas=R, seed=SEED + 50)
    other.load_state_dict(env.state_dict())
    assert other.t == 9
    assert all(torch.equal(value, env.get_buffer(key)) for key, value in other.named_buffers())


def test_to_moves_everything(env):
    """`meta` stands in for a GPU: every buffer follows, and `device` says so."""
    assert env.device.type == "cpu"
    assert all(value.dtype == torch.float64 for _, value in env.named_buffers() if value.ndim)
    env.to("meta")
    assert env.device.type == "meta" and all(value.is_meta for value in env.buffers())


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (torch.tensor([0, 1, 50]), "0 to 50"),
        (torch.tensor([0, -1, 2]), "-1 to 2"),
        (torch.tensor([0, 1]), r"shape \(2,\)"),
        (torch.tensor([[0], [1], [2]]), r"shape \(3, 1\)"),
        (torch.tensor(0), r"shape \(\)"),
        (torch.tensor([0.0, 1.0, 2.0]), "float32"),
    ],
)
def test_bad_arms_are_named_and_change_nothing(bad, words):
    """The error says what was seen, and the round is played afterwards as if nothing had happened."""
    env = Linear(replicas=R)
    env.contexts(1)
    before = env.pull(arms(0, 1, 2))
    with pytest.raises(NblError, match=words):
        env.pull(bad)
    with pytest.raises(NblError, match=words):
        env.regret(bad)
    after = env.pull(arms(0, 1, 2))
    assert env.t == 1 and torch.equal(before.reward, after.reward)


def test_pull_needs_an_open_round(env):
    """Before the first round, and after loading, there is nothing to play."""
    with pytest.raises(NblError, match="contexts"):
        env.pull(arms(0, 0, 0))


@pytest.mark.parametrize(
    "bad",
    [
        {"arms": 0},
        {"dim": -1},
        {"replicas": 0},
        {"arms": 2.5},
        {"noise": -0.1},
        {"noise": float("nan")},
        {"noise": float("inf")},
    ],
)
def test_bad_sizes_are_named(name, bad):
    """The error shows the argument as the reader wrote it."""
    ((key, value),) = bad.items()
    with pytest.raises(NblError, match=f"{key}={value}"):
        ENVIRONMENTS[name](**bad)
