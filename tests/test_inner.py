"""The inner training: stacked equals separate, and optimisers equal torch's."""

import math

import pytest
import torch

from nbl import inner
from nbl.history import Data
from nbl.inner import Fit, FitError, build
from nbl.networks import MLP
from nbl.rng import Streams
from nbl.schedule import Schedule
from nbl.schedule import build as build_schedule
from nbl.types import NblError

D = 4


def data(replicas, n=30, members=1, seed=0):
    """Replica r's data do not depend on how many there are."""
    parts = []
    for r in range(replicas):
        g = torch.Generator().manual_seed(seed + r)
        parts.append([torch.randn(*s, generator=g, dtype=torch.float64) for s in ((n, D), (members, n), (n,))])
    x, y, w = (torch.stack(p) for p in zip(*parts, strict=True))
    return Data(x, y, w.abs(), torch.zeros(replicas, members, dtype=torch.float64))


def network(seeds, members=1, kind="standard"):
    net = MLP(D, len(seeds), members, width=8, kind=kind).double()
    net.initialise(Streams(seeds, "algorithm"), 0)
    return net


def only(d, r):
    return Data(*(part[r : r + 1] for part in d))


@pytest.mark.parametrize("optimizer", ["gd", "momentum", "adam"])
@pytest.mark.parametrize("kind", ["standard", "zhou"])
def test_stacked_training_equals_separate_training(optimizer, kind):
    """R x M networks trained as one stack, over several retrainings, are what R separate runs give."""
    together, options = (
        network([0, 1, 2], 2, kind),
        {"optimizer": optimizer, "lr": 0.002, "steps": 7, "towards": "start"},
    )
    fit, d = build(options, together, 1.0).double(), [data(3, n, 2) for n in (10, 20)]
    alone = [network([r], 2, kind) for r in range(3)]
    fits = [build(options, net, 1.0).double() for net in alone]
    for each in d:
        fit(together, each, each.inputs.shape[1])
        for r in range(3):
            fits[r](alone[r], only(each, r), each.inputs.shape[1])
    torch.testing.assert_close(together.theta, torch.cat([net.theta for net in alone]))


def test_chunks_change_nothing(monkeypatch):
    trained = []
    for chunk in (1, 1 << 30):
        monkeypatch.setattr("nbl.inner.CHUNK", chunk)
        net, d = network([0, 1, 2]), data(3)
        build({}, net, 1.0).double()(net, d, 30)
        trained.append(net.theta.clone())
    torch.testing.assert_close(*trained)


@pytest.mark.parametrize("optimizer", ["gd", "momentum", "adam"])
@pytest.mark.parametrize("towards", ["zero", "start"])
@pytest.mark.parametrize("scale", ["mean", "sum"])
def test_equals_torch_optimisers_on_the_printed_loss(optimizer, towards, scale):
    """sum w (f - y)^2 / 2 + ridge |theta - centre|^2 / 2 through autograd and torch.optim, theta_0 detached."""
    net, d = network([0]), data(1)
    fit = Fit(net, 1.0, optimizer=optimizer, lr=1e-3, steps=12, scale=scale, ridge=2.0, towards=towards).double()
    theta = net.theta[0].detach().clone().requires_grad_()
    centre = net.theta0[0].clone() if towards == "start" else torch.zeros_like(theta)
    made = {
        "gd": lambda p: torch.optim.SGD(p, lr=1e-3),
        "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    }[optimizer]([theta])
    for _ in range(24):
        made.zero_grad()
        (W, b), (w, c) = map(net.apart, net.matrices(theta[None]))
        f = (d.inputs[0] @ W[0].T + b[0, :, 0]).relu() @ w[0, 0] + c[0, 0, 0]
        loss = 0.5 * (d.weights[0] * (f - d.targets[0, 0]) ** 2).sum() + 0.5 * 2.0 * (theta - centre).square().sum()
        (loss / 30 if scale == "mean" else loss).backward()
        made.step()
    fit(net, d, 30)
    fit(net, d, 30)  # warm: two retrainings of 12 steps are one of 24, moments included
    torch.testing.assert_close(net.theta[0], theta.detach())


def test_a_cold_start_really_resets():
    """Retrained twice on the same data from theta_0: the same weights; theta_0 itself is untouched by training."""
    net, d = network([0, 1]), data(2)
    before = net.theta0.clone()
    fit = build({"start": "cold", "lr": 0.01}, net, 1.0).double()
    fit(net, d, 30)
    first = net.theta.clone()
    fit(net, d, 30)
    assert torch.equal(net.theta, first) and torch.equal(net.theta0, before) and not torch.equal(first, before)


def test_only_those_who_are_due_train():
    """A masked replica keeps weights, moments and step count: its next training is as if nothing had happened."""
    net, d, other = network([0, 1]), data(2), network([1])
    fit, alone = build({}, net, 1.0).double(), build({}, other, 1.0).double()
    start = net.theta[1].clone()
    fit(net, d, 30, torch.tensor([True, False]))
    assert torch.equal(net.theta[1], start) and not torch.equal(net.theta[0], net.theta0[0])
    fit(net, d, 30)
    alone(other, only(d, 1), 30)
    torch.testing.assert_close(net.theta[1], other.theta[0])
    fit(net, d, 30, torch.tensor([False, False]))
    torch.testing.assert_close(net.theta[1], other.theta[0])


def test_divergence_is_an_error_and_nothing_is_committed():
    net, d = network([0, 1]), data(2)
    d.targets[1] *= 1e200
    fit = build({"optimizer": "gd", "lr": 10.0, "scale": "sum", "steps": 50}, net, 1.0).double()
    before = net.theta.clone()
    with pytest.raises(FitError, match=r"replica\(s\).*1.*fit.lr"):
        fit(net, d, 30)
    assert torch.equal(net.theta, before) and (fit.taken == 0).all()


def test_theory_rate_descends_where_the_printed_rate_diverges():
    """1/(m lam + m L t) on the printed sum loss: retraining ends lower than it began, at t = 30 and t = 3000."""
    for n in (30, 3000):
        net = network([0], kind="zhou")
        d = data(1, n)
        x = torch.nn.functional.normalize(d.inputs, dim=-1)
        d = Data(x, x[..., 0].unsqueeze(1), torch.ones_like(d.weights), d.rest)
        fit = build(
            {"optimizer": "gd", "lr": "theory", "scale": "sum", "towards": "start", "steps": 100}, net, 1.0
        ).double()
        assert fit.rate(net, n) == pytest.approx(1 / (8 * 1.0 + 8 * 2 * n))
        fit(net, d, n)
        assert fit.last.item() < 0.5 * d.targets.square().mean().item() * 0.9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "lbfgs"}, "gd, momentum, adam"),
        ({"lr": 0}, "positive"),
        ({"steps": 0}, "at least 1"),
        ({"ridge": -1.0}, "0 or more"),
        ({"learning_rate": 1.0}, "learning_rate"),
        ({"start": "hot"}, "warm, cold"),
    ],
)
def test_bad_options_are_named(options, words):
    with pytest.raises(NblError, match=words):
        build(options, network([0]), 1.0)


def due(schedule, rounds, logdet=None):
    return [n for n in range(1, rounds + 1) if schedule.due(n, logdet) is True]


def test_schedules():
    assert due(Schedule(1, every=4), 10) == [4, 8]
    assert due(Schedule(1, factor=2.0), 20) == [1, 2, 4, 8, 16]
    assert due(Schedule(1, factor=1.1), 6) == [1, 2, 3, 4, 5, 6]
    assert due(Schedule(1, until=3), 10) == [1, 2, 3]
    once = Schedule(1)
    assert once.due(1, None) is True and once.due(1, None) is False
    batch = Schedule(1, every=4)
    assert [batch.due(n, None) for n in (3, 7, 8, 11)] == [False, True, True, False]


def test_determinant_schedule_is_each_replicas_own():
    """Retrain when det U has doubled since the last time."""
    schedule = Schedule(2, logdet=2.0)
    grown = math.log(2.0) + 1e-9
    assert schedule.due(1, torch.tensor([0.0, 0.0], dtype=torch.float64)).tolist() == [True, True]
    assert schedule.due(2, torch.tensor([grown, 0.1], dtype=torch.float64)).tolist() == [True, False]
    assert schedule.due(3, torch.tensor([grown, grown], dtype=torch.float64)).tolist() == [False, True]
    with pytest.raises(NblError, match=r"retrain\.every"):
        schedule.due(4, None)


@pytest.mark.parametrize(
    "options", [{"every": 0}, {"factor": 1.0}, {"logdet": 0.5}, {"factor": 2, "logdet": 2}, {"evry": 1}]
)
def test_bad_schedules(options):
    with pytest.raises(NblError, match="retrain"):
        build_schedule(options, 1)


def test_chunks_side_by_side_are_chunks_one_after_another(monkeypatch):
    """Two threads train chunks of their own: the same weights, to the last bit, and the number of threads is kept."""
    monkeypatch.setattr(inner, "CHUNK", 1)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            net = MLP(3, replicas=4, width=4)
            net.initialise(Streams(range(4), "test"), 0)
            fit = inner.build({"steps": 5}, net, 1.0)
            x, y = torch.linspace(-1, 1, 4 * 6 * 3).view(4, 6, 3), torch.linspace(0, 1, 24).view(4, 1, 6)
            fit(net, Data(x, y, torch.ones(4, 6), torch.zeros(4, 1)), 6)
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)
        found.append((net.theta.clone(), fit.moments.clone(), fit.last.clone()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
