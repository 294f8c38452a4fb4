"""Generalised linear bandits and perturbed histories, against their definitions."""

import math

import pytest
import torch

from nbl.algorithms import GLMES, GLMFPL, GLMTSL, GLMUCB, LinPHE, NeuralPHE, glm
from nbl.algorithms.glm import GLMBandit
from nbl.envs import Logistic as LogisticEnv
from nbl.explore import perturbation
from nbl.losses import FAMILIES, family
from nbl.types import NblError

R, K, D = 2, 6, 3


def environment(**options):
    return LogisticEnv(**{"arms": K, "dim": D, "replicas": R, "noise": 0.3, **options})


@pytest.mark.parametrize("name", FAMILIES)
def test_mean_and_slope_are_derivatives(name):
    z = torch.linspace(-4, 4, 50, dtype=torch.float64, requires_grad=True)
    f = family(name)
    (first,) = torch.autograd.grad(f.partition(z).sum(), z, create_graph=True)
    torch.testing.assert_close(f.mean(z), first)
    second = torch.autograd.grad(first.sum(), z)[0]
    torch.testing.assert_close(f.slope(z), second)


@pytest.mark.parametrize("link", FAMILIES)
@pytest.mark.parametrize("fixed", [True, False])
def test_glm_es_members_minimise_their_own_loss(link, fixed, play):
    """theta^j = argmin lam/2 |theta|^2 - sum ((Y + Z^j) x.theta - b(x.theta)): its gradient is zero."""
    module = GLMES(D, arms=K, replicas=R, fixed_arms=fixed, members=3, nu=0.5, lam=0.7, link=link).double()
    env, xs, ys = environment(), [], []
    for t in range(1, 31):
        x = env.contexts(t)
        decision = module.act(x)
        feedback = env.pull(decision.arms)
        module.observe(x, decision, feedback)
        module.learn()
        xs.append(x[torch.arange(R), decision.arms])
        ys.append(feedback.reward)
    x, y = torch.stack(xs, 1), torch.stack(ys, 1)
    noise = torch.stack([module.streams.normal("perturbation", t, (3, 1)).squeeze(-1) for t in range(1, 31)], -1)
    theta = module.theta.clone().requires_grad_()
    z = torch.einsum("rnd,rmd->rmn", x, theta)
    targets = y.unsqueeze(1) + 0.5 * noise
    loss = 0.35 * theta.square().sum() - (targets * z - module.family.partition(z)).sum()
    assert torch.autograd.grad(loss, theta)[0].abs().max() < 1e-6


def test_newton_converges_from_far_and_for_targets_that_are_no_probabilities():
    """Y + Z may be any real number; step halving keeps Newton from overshooting the Poisson family's exponential."""
    module = GLMES(D, members=1, nu=0.0, lam=0.1, link="poisson").double()
    contexts = 3 * torch.eye(D, dtype=torch.float64)
    for arm, reward in ((0, 50.0), (1, -2.0), (2, 0.0)):
        module.observe(contexts, arm, reward)
    module.learn()
    theta = module.theta[0, 0]
    gradient = 0.1 * theta + 3 * (3 * theta).exp() - 3 * torch.tensor([50.0, -2.0, 0.0], dtype=torch.float64)
    assert gradient.abs().max() < 1e-5 and module.theta.isfinite().all()


@pytest.mark.parametrize("cls", [GLMES, GLMUCB, GLMFPL])
@pytest.mark.parametrize("link", FAMILIES)
def test_a_gpu_is_asked_once_a_round_and_gives_the_same(cls, link, play, monkeypatch):
    """Newton's method without a look at its progress: the same estimates, and hardly ever a second question."""
    found, asked = [], []
    arrived = GLMBandit._arrived
    monkeypatch.setattr(GLMBandit, "_arrived", lambda *args: asked.append(1) or arrived(*args))
    for block in (1, 6):
        monkeypatch.setattr(glm, "block_of", lambda device, block=block: block)
        asked.clear()
        module = cls(D, replicas=R, nu=0.5, lam=0.7, link=link).double()
        arms, _ = play(module, environment(), 40)
        found.append((arms, module.theta.clone()))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-7, atol=1e-8)
    assert 40 <= len(asked) <= 44


def test_gaussian_link_is_ridge_regression(play):
    module = GLMUCB(D, replicas=R, link="gaussian", lam=0.5).double()
    play(module, environment(), 25)
    data = module.history.data()
    A = 0.5 * torch.eye(D, dtype=torch.float64) + data.inputs.mT @ data.inputs
    expected = torch.linalg.solve(A, (data.inputs.mT @ data.targets[:, 0].unsqueeze(-1)).squeeze(-1))
    torch.testing.assert_close(module.theta[:, 0], expected)


@pytest.mark.parametrize("rule", ["li", "filippi"])
def test_glm_ucb_adds_the_width(rule, play):
    module = GLMUCB(D, replicas=R, nu=0.8, lam=0.6, rule=rule).double()
    play(module, environment(), 20)
    x = module.history.data().inputs
    V = 0.6 * torch.eye(D, dtype=torch.float64) + x.mT @ x
    probe = torch.randn(R, K, D, dtype=torch.float64)
    decision = module.act(probe)
    width = torch.einsum("rkd,rde,rke->rk", probe, torch.linalg.inv(V), probe).sqrt()
    z = torch.einsum("rkd,rd->rk", probe, module.theta[:, 0])
    torch.testing.assert_close(decision.scores, (z.sigmoid() if rule == "filippi" else z) + 0.8 * width)


def test_glm_tsl_draws_from_the_laplace_approximation():
    """Over 4000 seeds: mean x.MLE, sd nu sqrt(x' H^-1 x)."""
    many = 4000
    module = GLMTSL(D, replicas=many, nu=0.7, lam=1.0).double()
    contexts = torch.randn(K, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for arm in range(K):
        module.observe(contexts, torch.full((many,), arm), torch.full((many,), float(arm % 2), dtype=torch.float64))
    module.learn()
    H = module.hessian(module.theta)[0, 0]
    z = contexts @ module.theta[0, 0]
    scores = module.act(contexts).scores
    torch.testing.assert_close(scores.mean(0), z, atol=0.06, rtol=0)
    sd = 0.7 * ((contexts @ torch.linalg.inv(H)) * contexts).sum(-1).sqrt()
    torch.testing.assert_close(scores.std(0), sd, atol=0, rtol=0.06)


def test_a_fresh_perturbation_has_the_law_of_its_sum():
    """sum z_i x_i over 5 points, 20000 draws: covariance sum x x^T, singular or not."""
    x = torch.randn(5, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x[:, 2] = 0.0
    noise = torch.randn(20000, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    drawn = perturbation((x.T @ x).expand(20000, D, D), noise)
    torch.testing.assert_close(drawn.T @ drawn / 20000, x.T @ x, atol=0.2, rtol=0.05)
    assert drawn[:, 2].abs().max() < 1e-6


@pytest.mark.parametrize("cls", [LinPHE, GLMFPL])
def test_perturbed_history_is_fresh_every_round_and_fades(cls, play):
    """Scores differ from the mean's by a new draw each round, whose spread shrinks as 1/sqrt(t)."""
    link = {} if cls is LinPHE else {"link": "gaussian"}
    module, env = cls(D, replicas=200, nu=1.0, **link).double(), environment(replicas=200)
    spread = []
    for rounds in (10, 150):
        play(module, env, rounds, first=module.round + 1)
        contexts = env.contexts(module.round + 1)
        decision = module.act(contexts)
        spread.append((decision.scores - decision.means).std().item())
    assert 0 < spread[1] < 0.75 * spread[0]


def test_neural_phe_trains_on_fresh_noise_of_the_right_size(play):
    """With fixed arms, the mean of n perturbations: N(0, nu^2 / n); in full, one an observation."""
    options = {"net": {"width": 4}, "fit": {"steps": 1}, "nu": 2.0, "warmup": 0}
    fixed = NeuralPHE(D, arms=K, replicas=300, fixed_arms=True, **options)
    env = environment(replicas=300)
    play(fixed, env, 60)
    clean, noisy = fixed.history.data(), fixed.training_data()
    scaled = (noisy.targets - clean.targets)[:, 0] * clean.weights.sqrt() / 2.0
    assert scaled[clean.weights > 0].std().item() == pytest.approx(1.0, abs=0.07)
    before = fixed.training_data().targets
    assert torch.equal(before, noisy.targets)
    play(fixed, env, 1, first=61)
    assert not torch.allclose(
        fixed.training_data().targets - fixed.history.data().targets, noisy.targets - clean.targets
    )
    full = NeuralPHE(D, replicas=300, **options)
    play(full, env, 20)
    added = full.training_data().targets - full.history.data().targets
    assert added.std().item() == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("options", [{"link": "probit"}, {"lam": 0.0}, {"nu": -1.0}, {"members": 0}])
def test_bad_options(options):
    with pytest.raises(NblError, match=r"link=|lam=|nu=|members="):
        GLMES(D, **options)
    assert math.isfinite(GLMES(D).lam)
