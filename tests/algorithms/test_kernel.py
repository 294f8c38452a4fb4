"""Kernel bandits against their definitions."""

import pytest
import torch

from nbl import ntk
from nbl.algorithms import KernelTS, KernelUCB, LinUCB
from nbl.algorithms.kernel import rbf
from nbl.envs import ZhouH1
from nbl.types import NblError

R, K, D = 2, 4, 3


def environment():
    return ZhouH1(arms=K, dim=D, replicas=R)


def told(module, n, weights=None):
    """Plays arms in turn. Returns what was played and what came back, (R, n, d) and (R, n)."""
    env, xs, ys = environment(), [], []
    for t in range(1, n + 1):
        x = env.contexts(t)
        arms = torch.full((R,), t % K)
        reward = env.pull(arms).reward
        module.observe(x, arms, reward, None if weights is None else float(weights[t - 1]))
        xs.append(x[:, t % K])
        ys.append(reward)
    return torch.stack(xs, 1), torch.stack(ys, 1)


@pytest.mark.parametrize("kernel", [{"kind": "rbf", "bandwidth": 0.7}, {"kind": "ntk", "depth": 3, "power": 2}])
def test_means_and_widths_are_kernel_ridge_regressions(kernel):
    """mu = k' (lam I + K)^-1 y and sigma^2 = (k(x, x) - k' (lam I + K)^-1 k) / lam; score = mu + nu sigma."""
    module = KernelUCB(D, replicas=R, nu=0.8, lam=0.4, kernel=kernel).double()
    x, y = told(module, 25)
    probe = torch.randn(R, K, D, dtype=torch.float64)
    decision = module.act(probe)
    mean, width = ntk.ridge(module.k(x, x), y, module.k(probe, x), module.k(probe, probe).diagonal(dim1=1, dim2=2), 0.4)
    torch.testing.assert_close(decision.means, mean)
    torch.testing.assert_close(decision.widths, width)
    torch.testing.assert_close(decision.scores, mean + 0.8 * width)
    torch.testing.assert_close(module.logdet(), ntk.information_gain(module.k(x, x), 0.4))


def test_the_linear_kernel_is_linucb():
    """The same estimates through the dual form, weights included."""
    weights = torch.rand(20).tolist()
    weights[3] = 0.0
    kernel = KernelUCB(D, replicas=R, lam=0.6, kernel={"kind": "linear"}).double()
    plain = LinUCB(D, replicas=R, lam=0.6).double()
    told(kernel, 20, weights)
    told(plain, 20, weights)
    probe = torch.randn(R, K, D, dtype=torch.float64)
    torch.testing.assert_close(kernel.act(probe).scores, plain.act(probe).scores)


def test_kernel_ts_draws_one_function_for_all_arms():
    """Scores over seeds are N(mu, nu^2 (k(x, x') - ...)), jointly: two copies of one arm get the same score."""
    n = 4000
    module = KernelTS(D, replicas=n, nu=0.6, lam=0.5).double()
    x = torch.randn(K, D, dtype=torch.float64)
    x[1] = x[0]
    for arm, reward in ((0, 1.0), (2, -0.5)):
        module.observe(x, torch.full((n,), arm), torch.full((n,), reward, dtype=torch.float64))
    decision, k = module.act(x), rbf(x, x)
    inverse = torch.linalg.inv(0.5 * torch.eye(2, dtype=torch.float64) + k[[0, 2]][:, [0, 2]])
    covariance = k - k[:, [0, 2]] @ inverse @ k[[0, 2]]
    torch.testing.assert_close(decision.scores[:, 0], decision.scores[:, 1], atol=1e-5, rtol=0)
    torch.testing.assert_close(decision.scores.T.cov(), 0.36 * covariance, atol=0.03, rtol=0)
    torch.testing.assert_close(decision.widths[0], covariance.diagonal().sqrt())


def test_after_keep_observations_nothing_is_learnt():
    module = KernelUCB(D, replicas=R, keep=10).double()
    told(module, 10)
    before = module.act(environment().contexts(1)).scores
    told(module, 7)
    assert module.design.n == 10 and module.round == 17
    torch.testing.assert_close(module.act(environment().contexts(1)).scores, before)


def test_keep_counts_answers_at_once():
    """Of a batch that does not fit, the first are taken."""
    module = KernelUCB(D, keep=5).double()
    contexts = torch.randn(8, K, D, dtype=torch.float64)
    module.observe(contexts, torch.zeros(8, dtype=torch.int64), torch.randn(8, dtype=torch.float64))
    assert module.design.n == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": {"kind": "matern"}}, "rbf"),
        ({"kernel": {"kind": "rbf", "power": 2}}, "bandwidth"),
        ({"kernel": {"kind": "rbf", "bandwidth": 0}}, "positive"),
        ({"kernel": {"kind": "ntk", "depth": 1}}, "depth"),
        ({"kernel": {"kind": "ntk", "power": 1.5}}, "power"),
        ({"keep": 0}, "keep"),
        ({"nu": -1}, "nu"),
        ({"lam": 0.0}, "lam"),
    ],
)
def test_bad_options_are_named(options, words):
    with pytest.raises(NblError, match=words):
        KernelUCB(D, **options)
