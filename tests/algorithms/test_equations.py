"""Each algorithm against its own pseudocode, written out the slow way."""

import pytest
import torch

from nbl.algorithms import EpsilonGreedy, LinES, LinTS, LinUCB, NeuralES, NeuralLinear, NeuralTS, NeuralUCB
from nbl.envs import Quadratic, ZhouH1

R, K, D = 2, 4, 3
SMALL = {
    "net": {"kind": "zhou", "width": 6},
    "fit": {"steps": 3, "optimizer": "gd", "lr": "theory", "scale": "sum", "towards": "start"},
}


def environment():
    return ZhouH1(arms=K, dim=D, replicas=R)


def slow_neural(module, rounds, after):
    """Plays with `module` and keeps U by its definition, p x p. Yields contexts, widths by definition, and the
    decision.
    """
    env, lam = environment(), module.lam
    U = lam * torch.eye(module.net.size, dtype=torch.float64).repeat(R, 1, 1)
    for t in range(1, rounds + 1):
        x = env.contexts(t)
        g = module.net.features(x).dense()  # g / sqrt(m)
        yield x, torch.einsum("rki,rij,rkj->rk", g, torch.linalg.inv(U), g).sqrt(), module.act(x)
        decision = module.act(x)
        played = x[torch.arange(R), decision.arms].unsqueeze(1)
        before = module.net.features(played).dense()
        module.observe(x, decision, env.pull(decision.arms))
        module.learn()
        g = module.net.features(played).dense() if after else before
        U += g.mT @ g


def test_neural_ucb_is_algorithm_1():
    """score = f + gamma sqrt(g' Z^-1 g / m), Z grows with the gradient at theta_{t-1}."""
    module = NeuralUCB(D, replicas=R, nu=0.7, lam=0.5, **SMALL).double()
    for x, width, decision in slow_neural(module, 25, after=False):
        torch.testing.assert_close(decision.scores, module.net(x) + 0.7 * width)
        torch.testing.assert_close(decision.widths, width)


def test_neural_ts_is_algorithm_1():
    """sigma^2 = lam g' U^-1 g / m, U grows with the gradient at theta_t (line 10 after line 9); one normal draw an
    arm.
    """
    module = NeuralTS(D, replicas=R, nu=0.7, lam=0.5, **SMALL).double()
    for x, width, decision in slow_neural(module, 25, after=True):
        torch.testing.assert_close(decision.widths, 0.5**0.5 * width)
        noise = module.streams.normal("thompson", module.round + 1, (1, K)).squeeze(1)
        torch.testing.assert_close(decision.scores, module.net(x) + 0.7 * decision.widths * noise)


def test_prior_width_of_neural_ts_does_not_depend_on_lam():
    """sigma^2 = lam g' (lam I)^-1 g / m."""
    x = torch.randn(K, D)
    widths = [NeuralTS(D, lam=lam, net={"width": 8}).act(x).widths for lam in (0.01, 1.0, 100.0)]
    torch.testing.assert_close(widths[0], widths[1])
    torch.testing.assert_close(widths[1], widths[2])


def test_gradients_can_stay_at_the_start(play):
    module = NeuralUCB(D, replicas=R, gradient_at="start", **SMALL).double()
    play(module, environment(), 10)
    x = torch.randn(R, K, D, dtype=torch.float64)
    fresh = module.net.features(x, module.net.theta0)
    torch.testing.assert_close(module.features(x).dense(), fresh.dense())
    assert not torch.allclose(module.net.features(x).dense(), fresh.dense())


def test_last_layer_explores_on_the_last_layer(play):
    """The confidence matrix is that of the last layer's gradient: m (+ 1) numbers, not p."""
    module = NeuralUCB(D, replicas=R, last_layer=True, net={"width": 8})
    assert module.design.size == 9
    play(module, environment(), 10)
    assert module.act(torch.randn(R, K, D)).widths.isfinite().all()


def ridge(x, y, lam):
    A = lam * torch.eye(x.shape[-1], dtype=torch.float64) + x.T @ x
    return torch.linalg.solve(A, x.T @ y), torch.linalg.inv(A)


def played(module, env, rounds):
    """The contexts and rewards of what was played, (R, T, d) and (R, T)."""
    xs, ys = [], []
    for t in range(1, rounds + 1):
        x = env.contexts(t)
        decision = module.act(x)
        feedback = env.pull(decision.arms)
        module.observe(x, decision, feedback)
        module.learn()
        xs.append(x[torch.arange(R), decision.arms])
        ys.append(feedback.reward)
    return torch.stack(xs, 1), torch.stack(ys, 1)


@pytest.mark.parametrize("lam", [0.3, 2.0])
def test_linucb_is_ridge_plus_the_root_of_the_form(lam):
    """The root is the point: several public versions forget it."""
    module = LinUCB(D, replicas=R, nu=0.8, lam=lam).double()
    x, y = played(module, environment(), 30)
    probe = torch.randn(R, K, D, dtype=torch.float64)
    decision = module.act(probe)
    for r in range(R):
        theta, inverse = ridge(x[r], y[r], lam)
        torch.testing.assert_close(decision.means[r], probe[r] @ theta)
        torch.testing.assert_close(
            decision.scores[r], probe[r] @ theta + 0.8 * ((probe[r] @ inverse) * probe[r]).sum(-1).sqrt()
        )


def test_lints_draws_one_theta_for_all_arms():
    """Two copies of one arm get the same score; over seeds the scores have mean x.theta and sd nu sqrt(x' A^-1 x)."""
    module = LinTS(D, replicas=4000, nu=0.6).double()
    x = torch.randn(K, D, dtype=torch.float64)
    x[1] = x[0]
    for arm, reward in ((0, 1.0), (2, -0.5), (3, 0.2)):
        module.observe(x, torch.full((4000,), arm), torch.full((4000,), reward, dtype=torch.float64))
    decision = module.act(x)
    torch.testing.assert_close(decision.scores[:, 0], decision.scores[:, 1])
    torch.testing.assert_close(decision.scores.mean(0), decision.means[0], atol=0.05, rtol=0)
    torch.testing.assert_close(decision.scores.std(0), 0.6 * decision.widths[0], atol=0, rtol=0.05)


def test_lin_es_members_are_ridge_on_rewards_with_their_own_noise_drawn_once():
    """theta_j = A^-1 sum x (y + z_j), where z_j of round t is the same however often the model is refitted."""
    module = LinES(D, replicas=R, members=4, nu=0.5, lam=0.7).double()
    x, y = played(module, environment(), 20)
    noise = torch.stack([module.streams.normal("perturbation", t, (4, 1)).squeeze(-1) for t in range(1, 21)], -1)
    for r in range(R):
        for j in range(4):
            torch.testing.assert_close(module.theta[r, j], ridge(x[r], y[r] + 0.5 * noise[r, j], 0.7)[0])


def test_neural_es_stores_rewards_plus_each_members_own_noise():
    """Warm-up data included; nothing is redrawn later."""
    options = {"members": 3, "nu": 0.5, "net": {"width": 4}, "fit": {"steps": 2}, "history": "full"}
    module = NeuralES(D, replicas=R, warmup=4, **options).double()
    x, y = played(module, environment(), 12)
    noise = torch.stack([module.streams.normal("perturbation", t, (3, 1)).squeeze(-1) for t in range(1, 13)], -1)
    torch.testing.assert_close(module.history.data().targets, y.unsqueeze(1) + 0.5 * noise)
    torch.testing.assert_close(module.history.data().inputs, x)
    assert not torch.allclose(module.net(x)[:, 0], module.net(x)[:, 1])


def test_neural_es_plays_the_drawn_members_best_arm(play):
    module = NeuralES(D, replicas=R, members=5, warmup=0, net={"width": 8}, nu=2.0).double()
    env = environment()
    play(module, env, 20)
    drawn = set()
    for t in range(21, 60):
        x = env.contexts(t)
        decision = module.act(x)
        member, f = decision.extra["member"], module.net(x)
        assert torch.equal(decision.arms, f[torch.arange(R), member].argmax(-1))
        drawn |= set(member.tolist())
        module.observe(x, decision, env.pull(decision.arms))
    assert drawn == set(range(5))


def test_warmup_plays_each_arm_in_turn(play):
    env = Quadratic(arms=6, dim=D, replicas=R)
    module = NeuralES(D, arms=6, replicas=R, fixed_arms=True, members=2, net={"width": 4}, fit={"steps": 1})
    arms = play(module, env, 10)[0]
    assert torch.equal(arms[:6], torch.arange(6)[:, None].expand(6, R))
    longer = NeuralES(D, arms=6, replicas=R, fixed_arms=True, warmup=9, members=2, net={"width": 4}, fit={"steps": 1})
    assert torch.equal(play(longer, env, 9)[0][:, 0], torch.arange(9) % 6)


@pytest.mark.parametrize("recompute", [True, False])
def test_neural_linear_is_ridge_on_the_last_layer(recompute):
    """With features of today for all rounds, or as they were when observed."""
    module = NeuralLinear(
        D, replicas=R, rule="ucb", lam=0.4, recompute=recompute, net={"width": 6}, retrain={"every": 4}
    ).double()
    env, kept = environment(), []
    for t in range(1, 15):
        x = env.contexts(t)
        decision = module.act(x)
        feedback = env.pull(decision.arms)
        row = x[torch.arange(R), decision.arms].unsqueeze(1)
        kept.append((row, module.features(row), feedback.reward))
        module.observe(x, decision, feedback)
        module.learn()
    rows, y = torch.cat([k[0] for k in kept], 1), torch.stack([k[2] for k in kept], 1)
    phi = module.features(rows) if recompute else torch.cat([k[1] for k in kept], 1)
    probe = torch.randn(R, K, D, dtype=torch.float64)
    decision = module.act(probe)
    for r in range(R):
        theta, inverse = ridge(phi[r], y[r], 0.4)
        new = module.features(probe)[r]
        torch.testing.assert_close(decision.means[r], new @ theta, rtol=1e-5, atol=1e-8)
        torch.testing.assert_close(decision.widths[r], ((new @ inverse) * new).sum(-1).sqrt(), rtol=1e-5, atol=1e-8)


def test_epsilon_greedy_explores_as_often_as_it_says():
    module = EpsilonGreedy(D, replicas=4000, epsilon=0.2, net={"width": 4})
    decision = module.act(torch.randn(4000, K, D))
    greedy = decision.arms == decision.means.argmax(-1)
    assert decision.extra["explored"].double().mean().item() == pytest.approx(0.2, abs=0.025)
    assert greedy.double().mean().item() == pytest.approx(0.8 + 0.2 / K, abs=0.025)


def test_a_network_of_ones_own(play):
    """Any nn.Module: the exact confidence and the training go through torch.func."""

    def make():
        return torch.nn.Sequential(torch.nn.Linear(D, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))

    module = NeuralUCB(D, replicas=R, net=make, fit={"steps": 3}).double()
    arms, _ = play(module, environment(), 20)
    assert arms.shape == (20, R) and module.fit.last.isfinite().all()
    assert (module.act(torch.randn(R, K, D)).widths > 0).all()
