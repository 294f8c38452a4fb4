"""Coins with nonlinear latent rewards, and pools that set the effective dimension."""

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from nbl import bounds, config
from nbl.envs import LogH1, LogH2, LogH3, LogH4, LogH5, LogH6
from nbl.envs.logistic import distinct
from nbl.types import NblError

# The seed's formulas, written anew for one arm x (d,) and one replica's parameters.
FORMULAS = {
    LogH1: lambda x, p: 0.2 * (x @ p) ** 4,
    LogH2: lambda x, p: 20 * torch.cos(x @ p),
    LogH3: lambda x, p: 5 * x @ p @ x,
    LogH4: lambda x, p: 10 * (x @ p) ** 2,
    LogH5: lambda x, p: x @ p.T @ p @ x,
    LogH6: lambda x, p: torch.cos(3 * (x @ p)),
}


@pytest.mark.parametrize("cls", FORMULAS)
def test_the_mean_is_the_sigmoid_of_the_formula(cls):
    env = cls(replicas=2, seed=3)
    contexts = env.contexts(4)
    parameter = env.theta if hasattr(env, "theta") else env.Theta
    assert parameter.abs().max() <= 1
    for r in range(2):
        for k in range(5):
            h = FORMULAS[cls](contexts[r, k], parameter[r])
            torch.testing.assert_close(env.mean(contexts)[r, k], torch.sigmoid(h))
    file = config.folder() / "env" / f"log_h{list(FORMULAS).index(cls) + 1}.yaml"
    made = instantiate(OmegaConf.load(file), seed=3)
    assert type(made) is cls and (made.arms, made.dim, made.pool) == (5, 20, 2500)


def test_rewards_are_coins_and_the_variance_is_told():
    """Of 4000 coins as many are heads as the means say, within four standard errors."""
    env, heads, means, spread = LogH6(replicas=100), 0.0, 0.0, 0.0
    for t in range(1, 41):
        env.contexts(t)
        feedback = env.pull(torch.zeros(100, dtype=torch.int64))
        assert ((feedback.reward == 0) | (feedback.reward == 1)).all()
        mean = env._played(torch.zeros(100, dtype=torch.int64))
        torch.testing.assert_close(feedback.extra["variance"], mean * (1 - mean))
        heads, means = heads + feedback.reward.sum(), means + mean.sum()
        spread += (mean * (1 - mean)).sum()
    assert abs(heads - means) < 4 * spread.sqrt()


def test_a_pool_has_as_many_vectors_as_it_says():
    """Contexts come from the pool, differ within a round, and a smaller pool has a lower effective dimension."""
    dims = []
    for pool in (10, 50, None):
        env = LogH1(pool=pool)
        seen = torch.cat([env.contexts(t)[0] for t in range(1, 101)])
        assert seen.abs().max() <= 1 and len(seen.unique(dim=0)) == (pool or 500)
        assert all(len(env.contexts(t)[0].unique(dim=0)) == 5 for t in range(1, 30))
        dims.append(float(bounds.effective_dimension(seen, 0.25)))
    assert dims[0] < dims[1] < dims[2]


def test_distinct_numbers_are_uniform():
    """Three of four without repeats: each of the 24 orders as often (chi-square, 23 degrees of freedom, 0.1%: 49.7)."""
    picks = distinct(torch.rand(12_000, 3, generator=torch.Generator().manual_seed(0)), 4)
    codes = (picks * torch.tensor([16, 4, 1])).sum(1)
    values, counts = codes.unique(return_counts=True)
    assert len(values) == 24 and ((counts - 500.0).square() / 500).sum() < 49.7


@pytest.mark.parametrize("pool", [1, 2.5, True, "many"])
def test_bad_pools_are_refused(pool):
    with pytest.raises(NblError, match="pool"):
        LogH1(pool=pool)
