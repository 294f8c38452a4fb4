"""`observe` reuses what `act` found out about the same contexts; nobody can tell."""

import copy

import pytest
import torch

from nbl.algorithms import NeuralUCB
from nbl.design import Dual
from nbl.gradient import Gradient

D, K, BLOCKS = 4, 3, 2


def policies(replicas=2, **options):
    """Two alike: the first is asked to act, the second is only told."""
    net = {"width": 6, **options.pop("net", {})}
    return [NeuralUCB(D, replicas=replicas, net=net, fit={"steps": 2}, **options).double() for _ in range(2)]


def contexts(t, replicas=2, length=D):
    return torch.randn(replicas, K, length, generator=torch.Generator().manual_seed(t), dtype=torch.float64)


def alike(one, two):
    probe = contexts(99, one.replicas, one.length)
    if one.blocks:
        probe[..., -1] = 1
    torch.testing.assert_close(one.act(probe).widths, two.act(probe).widths, rtol=1e-10, atol=0)
    torch.testing.assert_close(one.logdet(), two.logdet(), rtol=1e-10, atol=0)


OPTIONS = [
    {},
    {"design": "full"},
    {"design": "diagonal"},
    {"gradient_at": "start"},
    {"last_layer": True},
    {"net": {"depth": 3}},
    {"net": {"kind": "zhou"}},
    {"retrain": {"every": 4}},
    {"blocks": BLOCKS},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_arm_that_was_compared_counts_as_one_that_was_not(options):
    """Fifteen rounds, weights given, other arms than the policy's own among them."""
    asked, told = policies(**options)
    for t in range(15):
        x = contexts(t, length=asked.length)
        if asked.blocks:
            x[..., -1] = torch.arange(K) % BLOCKS
        arms, weight = torch.tensor([t % K, (t // 2) % K]), torch.tensor([1.0, 0.5 + t])
        asked.act(x)
        assert asked.recall(asked._contexts(x, "act"), arms.unsqueeze(1)) is not None
        for policy in (asked, told):
            policy.observe(x, arms, torch.tensor([0.3, -0.2]), weight)
            policy.learn()
    alike(asked, told)


def test_many_questions_at_once():
    asked, told = policies(replicas=1)
    for t in range(5):
        x = contexts(t, replicas=4)
        decision = asked.act(x)
        for policy in (asked, told):
            policy.observe(x, decision.arms, torch.ones(4))
            policy.learn()
    alike(asked, told)


def test_contexts_that_are_written_over_are_new():
    """A service that keeps one buffer for all its contexts, and observes what it did not ask about."""
    asked, told = policies(retrain={"every": 100})
    buffer = contexts(0)
    asked.act(buffer)
    for t in range(1, 4):
        buffer.copy_(contexts(t))
        asked.observe(buffer, torch.tensor([0, 1]), torch.ones(2))
        told.observe(contexts(t), torch.tensor([0, 1]), torch.ones(2))
    alike(asked, told)


@pytest.mark.parametrize("change", ["train", "load", "restart", "by hand"])
def test_weights_that_have_moved_are_looked_at_anew(change):
    asked, told = policies()
    other = NeuralUCB(D, replicas=2, net={"width": 6}, fit={"steps": 2}, seed=7).double()
    x, arms = contexts(0), torch.tensor([2, 0])
    for policy in (asked, told, other):
        policy.observe(x, arms, torch.ones(2))
    asked.act(x)
    for policy in (asked, told):
        if change == "train":
            policy.train_all()
        elif change == "load":
            policy.load_state_dict(other.state_dict())
        elif change == "restart":
            policy.restart()
        else:
            policy.net.theta.mul_(1.1)
        policy.observe(x, arms, torch.ones(2))
    alike(asked, told)


def test_a_copy_of_a_policy_that_was_asked_goes_its_own_way():
    asked, told = policies()
    x, arms = contexts(0), torch.tensor([1, 2])
    asked.act(x)
    twin = copy.deepcopy(asked)
    for policy in (asked, twin, told):
        policy.observe(x, arms, torch.ones(2))
        policy.learn()
    alike(asked, told)
    alike(twin, told)


@pytest.mark.parametrize("between", ["nothing", "add", "rescale", "reset"])
def test_a_factor_that_has_changed_is_projected_on_anew(between):
    """The points of a gradient, after anything that changes U."""
    g = Gradient.explicit(torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    index, one = torch.tensor([[3], [1]]), torch.ones(2, 1, dtype=torch.float64)
    remembers, fresh = Dual(2, 6, 0.5), Dual(2, 6, 0.5)
    for design in (remembers, fresh):
        design.update(g.point(0))
    remembers.width(g)
    for design in (remembers, fresh):
        if between == "add":
            design.update(g.point(2))
        elif between == "rescale":
            design.rescale(torch.tensor([0.5, 0.25]), torch.tensor([True, True]))
        elif between == "reset":
            design.reset()
    remembers.update(g.at(index), one)
    fresh.update(Gradient.explicit(torch.stack([g.dense()[0, 3:4], g.dense()[1, 1:2]])), one)
    torch.testing.assert_close(remembers.width(g), fresh.width(g), rtol=1e-12, atol=0)
    torch.testing.assert_close(remembers.logdet(), fresh.logdet(), rtol=1e-12, atol=0)
