"""Both histories say the same to the inner training."""

import pytest
import torch

from nbl.history import ArmHistory, History, take
from nbl.inner import Fit
from nbl.networks import MLP
from nbl.rng import Streams
from nbl.types import NblError

R, K, D, M = 2, 4, 3, 2


def rounds(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    arms = torch.randint(0, K - 1, (n, R, 1), generator=g)  # the last arm is never played
    return (
        arms,
        torch.randn(n, R, M, 1, generator=g, dtype=torch.float64),
        torch.rand(n, R, 1, generator=g, dtype=torch.float64),
    )


@pytest.mark.parametrize("optimizer", ["gd", "momentum", "adam"])
@pytest.mark.parametrize("scale", ["mean", "sum"])
def test_per_arm_and_full_history_train_to_the_same_weights(optimizer, scale):
    """Gradients of the squared loss are linear in the targets: sums per arm suffice, perturbations and weights
    included.
    """
    contexts = torch.randn(R, 1, K, D, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    full, per_arm = History(R, D, M).double(), ArmHistory(R, K, D, M).double()
    for arms, targets, weights in zip(*rounds(60), strict=True):
        for history in (full, per_arm):
            history.append(contexts, arms, targets, weights)
    trained = []
    for history in (full, per_arm):
        net = MLP(D, R, M, width=6).double()
        net.initialise(Streams(range(R), "algorithm"), 0)
        fit = Fit(net, 1.0, optimizer=optimizer, lr=0.003, steps=30, scale=scale, ridge=1.0).double()
        fit(net, history.data(), history.n)
        trained.append((net.theta.clone(), fit.last.clone()))
    torch.testing.assert_close(trained[0][0], trained[1][0])
    torch.testing.assert_close(trained[0][1], trained[1][1])  # the loss reported, too
    assert full.n == per_arm.n == 60


def test_history_grows_and_keeps_order():
    history, contexts = History(R, D, M), torch.randn(R, 1, K, D)
    said = list(zip(*rounds(70), strict=True))
    for arms, targets, weights in said:
        history.append(contexts, arms, targets.float(), weights.float())
    data = history.data()
    assert data.inputs.shape == (R, 70, D)
    torch.testing.assert_close(data.targets, torch.cat([t for _, t, _ in said], -1).float())
    torch.testing.assert_close(data.inputs, torch.cat([take(contexts, a) for a, *_ in said], 1))
    history.reset()
    assert history.n == 0 and history.data().inputs.shape[1] == 0


@pytest.mark.parametrize("make", [lambda: History(R, D, M), lambda: ArmHistory(R, K, D, M)])
def test_state_travels(make):
    contexts, history, other = torch.randn(R, 1, K, D), make(), make()
    for arms, targets, weights in zip(*rounds(9), strict=True):
        history.append(contexts, arms, targets.float(), weights.float())
    other.load_state_dict(history.state_dict())
    for arms, targets, weights in zip(*rounds(9, 1), strict=True):
        for each in (history, other):
            each.append(contexts, arms, targets.float(), weights.float())
    for a, b in zip(history.data(), other.data(), strict=True):
        assert torch.equal(a, b)


def test_arms_that_change_are_refused_and_nothing_is_lost():
    history, contexts = ArmHistory(R, K, D), torch.randn(R, 1, K, D)
    one = torch.ones(R, 1, dtype=torch.long)
    history.append(contexts, one, torch.ones(R, 1, 1), torch.ones(R, 1))
    before = history.data()
    with pytest.raises(NblError, match="fixed_arms=False"):
        history.append(contexts + 1, one, torch.ones(R, 1, 1), torch.ones(R, 1))
    assert history.n == 1 and all(torch.equal(a, b) for a, b in zip(before, history.data(), strict=True))
