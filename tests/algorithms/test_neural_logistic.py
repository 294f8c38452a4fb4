"""The logistic family against its equations, written anew with p x p matrices."""

import math

import pytest
import torch

from nbl import bounds
from nbl.algorithms import (
    NCBFUCB,
    AdaOFUECOLog,
    LinUCB,
    LogisticUCB1,
    NeuralLogTS1,
    NeuralLogTS2,
    NeuralLogUCB1,
    NeuralLogUCB2,
    NeuralUCB,
)
from nbl.envs import LogH6
from nbl.types import NblError

D, K, R = 4, 3, 2
NET = {"net": {"kind": "zhou", "width": 6}}
PAPER = {
    **NET,
    "theory": True,
    "fit": {
        "optimizer": "gd",
        "lr": "theory",
        "steps": 4,
        "scale": "sum",
        "ridge": None,
        "towards": "start",
        "start": "cold",
    },
}
FIVE = (NeuralLogUCB1, NeuralLogUCB2, NeuralLogTS1, NeuralLogTS2, NCBFUCB)
ALL = (*FIVE, LogisticUCB1, AdaOFUECOLog)
VERSIONS_2 = (NeuralLogUCB2, NeuralLogTS2)


def played(cls, rounds, **options):
    """Play, and keep each round's context and mu'(f(x_i; theta_i)).    -> module, (R, n, d), (R, n)"""
    module, env = cls(D, replicas=R, **options).double(), LogH6(arms=K, dim=D, replicas=R)
    xs, slopes = [], []
    for t in range(1, rounds + 1):
        contexts = env.contexts(t)
        decision = module.act(contexts)
        module.observe(contexts, decision, env.pull(decision.arms))
        module.learn()
        xs.append(contexts[torch.arange(R), decision.arms])
        mu = module.net(xs[-1][:, None]).sigmoid().squeeze(1)
        slopes.append(mu * (1 - mu))
    return module, torch.stack(xs, 1), torch.stack(slopes, 1)


@pytest.mark.parametrize("cls", FIVE)
@pytest.mark.parametrize("step", [1.0, 1.1])
def test_the_paper_preset_is_the_printed_algorithm(cls, step):
    """V and W from their definition, p x p, with lambda_t, d~, iota and nu from (1) to (4), after 25 rounds.

    Refactored every round, widths are exact; on the geometric schedule never too small, and at most 5% too large.
    """
    n, kappa = 25, 12.0
    module, x, slopes = played(cls, n, kappa=kappa, nu=0.01, ridge_step=step, **PAPER)
    g = module.net.features(x, module.net.theta0).dense()  # g(x; theta_0) / sqrt(m)
    gram = g.mT @ g
    eye = torch.eye(g.shape[-1], dtype=torch.float64)
    if cls is NCBFUCB:
        ridge = torch.full((R,), module.lam)
        d = torch.logdet(eye + gram / (kappa * module.lam))
        radius = kappa * (d + 2 * math.log(20)).sqrt() + math.sqrt(kappa * module.lam) + 1
    else:
        lam0 = bounds.lambda_0(1.0, 0.05)
        d = torch.logdet(eye + gram / (4 * lam0))
        ridge = bounds.lambda_t(d, n, lam0, 1.0, 0.05)
        radius = bounds.nu_t(bounds.iota_t(d, n, lam0, 0.05), 1.0)
    if cls in VERSIONS_2:
        U = ridge[:, None, None] * eye + (g * slopes[..., None]).mT @ g
    else:
        U = kappa * ridge[:, None, None] * eye + gram
        radius = radius if cls is NCBFUCB else math.sqrt(kappa) * radius
    contexts = torch.rand(R, K, D, dtype=torch.float64)
    new = module.net.features(contexts, module.net.theta0).dense()
    width = (new * torch.linalg.solve(U, new.mT).mT).sum(-1).sqrt()
    decision = module.act(contexts)
    if step == 1.0 or cls is NCBFUCB:
        torch.testing.assert_close(decision.widths, width)
    else:
        assert (decision.widths >= width * (1 - 1e-9)).all() and (decision.widths <= 1.05 * width).all()
    torch.testing.assert_close(decision.extra["radius"], radius)
    torch.testing.assert_close(decision.extra["effective_dimension"], d)
    delta = module.net.theta - module.net.theta0
    linear = torch.einsum("rkp,rp->rk", new, delta) * math.sqrt(6)
    f = linear if cls in VERSIONS_2 else module.net(contexts)
    bonus = 0.01 * radius[:, None] * decision.widths
    if cls is NeuralLogUCB1:
        torch.testing.assert_close(decision.scores, f.sigmoid() + 0.25 * bonus)  # line 2
    elif not module.randomised:
        torch.testing.assert_close(decision.scores, f + bonus)
    else:
        noise = module.normal("thompson", (1, K))[:, 0]
        torch.testing.assert_close(decision.scores, f + bonus * noise)


@pytest.mark.parametrize("cls", FIVE)
def test_the_practical_bonus_is_the_order_of_the_printed_one(cls):
    """The docstring's table, with gradients at theta_t, unscaled; weights are frozen, so all are at one theta."""
    kappa, lam, S, nu, n = 9.0, 0.5, 2.0, 0.3, 12
    options = {"kappa": kappa, "lam": lam, "S": S, "nu": nu, **NET, "retrain": {"every": 1000}}
    module, x, slopes = played(cls, n, **options)
    g = module.net.features(x).dense() * math.sqrt(6)
    gram, eye = g.mT @ g, torch.eye(g.shape[-1], dtype=torch.float64)
    if cls is NCBFUCB:
        d = torch.logdet(eye + gram / kappa)
        radius = kappa * d.sqrt() + S * math.sqrt(kappa * lam) + 1
    else:
        d = torch.logdet(eye + 0.25 * gram)
        radius = (1 + math.sqrt(2) * S + 2 * S**2) * (d.sqrt() + math.sqrt(2 / lam)) + 1
        radius = radius if cls in VERSIONS_2 else math.sqrt(kappa) * radius
    U = lam * eye + (g * slopes[..., None]).mT @ g if cls in VERSIONS_2 else kappa * lam * eye + gram
    contexts = torch.rand(R, K, D, dtype=torch.float64)
    new = module.net.features(contexts).dense() * math.sqrt(6)
    decision = module.act(contexts)
    torch.testing.assert_close(decision.widths, (new * torch.linalg.solve(U, new.mT).mT).sum(-1).sqrt())
    torch.testing.assert_close(decision.extra["radius"], radius)


def test_the_penalty_is_lambda_theta_squared_or_m_lambda_t():
    """Practical: fit.ridge 2 lambda, against half a square. As printed: m lambda_t towards theta_0, replica by replica:
    the same steps as gradient descent written out.
    """
    assert NeuralLogUCB1(D, lam=3.0).fit.ridge == 6.0
    module, _, _ = played(NeuralLogUCB2, 9, **PAPER)
    lam, data, net = module.ridge(), module.history.data(), module.net
    theta = net.theta0.clone()
    for _ in range(4):
        f, kept = net.evaluate(net.unpack(theta), net.prepare(data.inputs))
        f = f - net.evaluate(net.unpack(net.theta0), net.prepare(data.inputs))[0]
        grad = torch.empty_like(theta)
        net.pullback(net.unpack(theta), kept, f.sigmoid() - data.targets[:, 0], net.unpack(grad))
        grad += 6 * lam[:, None] * (theta - net.theta0)
        theta = theta - grad / (6 * (lam[:, None] + 2 * 9))
    torch.testing.assert_close(net.theta.data, theta)
    assert lam[0] != lam[1]


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("reward", [-0.1, 1.5, 7.0])
def test_a_reward_that_is_no_coins_is_refused(cls, reward):
    """State untouched; 0, 1 and what lies between are fine. Losses of other algorithms accept any real number."""
    module, contexts = cls(D), torch.rand(K, D)
    with pytest.raises(
        NblError, match=f"reward of replica 0 is {reward:g}, but {cls.__name__} is for rewards from 0 to 1"
    ):
        module.observe(contexts, 1, reward)
    assert module.round == 0 and module.history.n == 0 and float(module.effective.logdet()) == 0
    for fine in (0.0, 0.3, 1.0):
        module.observe(contexts, 1, fine)
    LinUCB(D).observe(contexts, 1, reward)
    NeuralUCB(D).observe(contexts, 1, reward)


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize(
    "bad", [{"S": 0.0}, {"S": math.inf}, {"kappa": 3.0}, {"delta": 0.0}, {"delta": 1.0}, {"nu": -1.0}]
)
def test_bad_constants_are_refused(cls, bad):
    with pytest.raises(NblError, match=f"{next(iter(bad))}="):
        cls(D, **bad)


def test_logistic_ucb_1_is_its_formula(play):
    module, env = LogisticUCB1(D, replicas=R, nu=0.2, lam=2.0, kappa=8.0, S=1.5).double(), LogH6(K, D, replicas=R)
    play(module, env, 20)
    x = module.history.data().inputs
    gram, eye = x.mT @ x, torch.eye(D, dtype=torch.float64)
    d = torch.logdet(eye + 0.25 * gram)
    radius = 0.25 * math.sqrt(8 * 4) * (math.sqrt(2) * 2 + d / math.sqrt(2))
    contexts = torch.rand(R, K, D, dtype=torch.float64)
    width = (contexts * torch.linalg.solve(16 * eye + gram, contexts.mT).mT).sum(-1).sqrt()
    mean = torch.einsum("rkd,rd->rk", contexts, module.theta[:, 0]).sigmoid()
    torch.testing.assert_close(module.act(contexts).scores, mean + 0.2 * radius[:, None] * width)


def test_the_online_step_minimises_its_loss():
    """theta' minimises |theta - theta_t|^2_W / (2 + 2 S) + loss: its gradient is zero; W grows by mu' there."""
    module = AdaOFUECOLog(D, online=True, S=2.0, lam=0.7).double()
    for i, reward in enumerate((1.0, 0.0, 1.0, 1.0)):
        contexts = torch.randn(K, D, dtype=torch.float64)
        before, W = module.theta[0, 0].clone(), torch.linalg.inv(module.design.inverse[0])
        module.observe(contexts, i % K, reward)
        theta, x = module.theta[0, 0], contexts[i % K]
        mu = torch.sigmoid(x @ theta)
        gradient = 2 / (2 + 4) * W @ (theta - before) + (mu - reward) * x
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)
        torch.testing.assert_close(torch.linalg.inv(module.design.inverse[0]), W + mu * (1 - mu) * torch.outer(x, x))
    module.learn()
    assert torch.equal(module.theta[0, 0], theta)


def test_variance_weights_are_those_of_the_callback(play):
    """UCB-2's weight is what VarianceWeighting(direct) would give for the model's own variance."""
    from nbl_callbacks import VarianceWeighting

    module, env = NeuralLogUCB2(D, replicas=R).double(), LogH6(K, D, replicas=R)
    play(module, env, 10)
    contexts, arms = env.contexts(11), torch.tensor([0, 2])
    variance = module.variance(contexts, arms)
    expected = VarianceWeighting(mode="direct").weigh(variance).design
    x = contexts[torch.arange(R), arms][:, None]
    torch.testing.assert_close(module.weigh(x, torch.ones(R, 1, dtype=torch.float64))[:, 0], expected)
