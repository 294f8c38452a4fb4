"""BootstrapNN: which observations a network sees, and that it sees them as if they were all there is."""

import pytest
import torch

from nbl.algorithms import BootstrapNN, EpsilonGreedy
from nbl.envs import Quadratic, ZhouH1
from nbl.types import NblError

SMALL = {"net": {"width": 6}, "fit": {"steps": 3}}


def played(chance=0.8, rounds=60, members=4, env=ZhouH1, **more):
    environment = env(dim=5, arms=4, replicas=2)
    options = {**SMALL, "members": members, "chance": chance, "arms": 4, "fixed_arms": environment.fixed_arms, **more}
    module = BootstrapNN(5, replicas=2, **options).double()
    for t in range(1, rounds + 1):
        contexts = environment.contexts(t)
        decision = module.act(contexts)
        module.observe(contexts, decision, environment.pull(decision.arms))
        module.learn()
    return module


def test_each_network_sees_its_own_part():
    """About 80 of 100 each, independently, decided once."""
    weights = played(rounds=100, members=10).history.data().weights
    assert weights.shape == (2, 10, 100) and set(weights.unique().tolist()) == {0.0, 1.0}
    assert weights.mean().item() == pytest.approx(0.8, abs=0.03)
    assert len({tuple(row) for row in weights.flatten(0, 1).tolist()}) == 20


def test_a_network_is_trained_on_what_it_has_and_nothing_else():
    """One retraining from theta_0 equals that of a single network whose other observations weigh nothing."""
    module = played(rounds=30, retrain={"every": 1000})
    data = module.history.data()
    module.fit(module.net, data, 30)
    for member in range(4):
        one = EpsilonGreedy(5, replicas=2, **SMALL).double()
        one.fit(
            one.net,
            data._replace(targets=data.targets[:, :1], weights=data.weights[:, member], rest=data.rest[:, :1]),
            30,
        )
        torch.testing.assert_close(module.net.theta.view(2, 4, -1)[:, member], one.net.theta)


def test_with_every_observation_in_all_networks_are_the_same():
    """chance=1 is greedy play by one network."""
    theta = played(chance=1.0).net.theta.view(2, 4, -1)
    torch.testing.assert_close(theta, theta[:, :1].expand_as(theta))


def test_sums_per_arm_equal_the_full_history():
    """Fixed arms: the same networks from weights and sums per arm and member."""
    sums, full = (played(env=Quadratic, rounds=40, history=h) for h in ("arms", "full"))
    assert sums.history.weights.shape == (2, 4, 4)
    torch.testing.assert_close(sums.net.theta, full.net.theta)
    torch.testing.assert_close(sums.fit.last, full.fit.last)


@pytest.mark.parametrize("chance", [0.0, 1.5])
def test_a_chance_is_a_probability(chance):
    with pytest.raises(NblError, match="chance"):
        BootstrapNN(5, chance=chance)
