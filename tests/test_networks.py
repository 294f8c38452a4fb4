"""Closed forms against autograd, and the promises of each initialisation."""

import pytest
import torch
from torch import nn

from nbl.networks import MLP, ModuleNetwork, build
from nbl.rng import Streams
from nbl.types import NblError

SHAPES = [
    ("standard", 2, 1),
    ("standard", 3, 2),
    ("zhou", 2, 1),
    ("zhou", 3, 1),
    ("ntk", 2, 1),
    ("ntk", 3, 2),
    ("ntk", 4, 3),
]


def made(kind="standard", depth=2, power=1, replicas=3, members=1, width=8, dim=5, moved=True):
    net = MLP(dim, replicas, members, kind=kind, depth=depth, power=power, width=width).double()
    net.initialise(Streams(range(replicas), "algorithm"), 0)
    if moved:
        net.theta += 0.3 * torch.randn(net.theta.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return net


def contexts(replicas=3, n=7, dim=5):
    return torch.randn(replicas, n, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def written_out(net, theta, x):
    """One network, as its definition reads: the reference for everything in this file."""
    h = net.prepare(x).rows[..., : net.shapes[0][1]]  # without the 1 that a bias is multiplied with
    layers = map(net.apart, net.matrices(theta[None]))
    for layer, ((weight, bias), gain) in enumerate(zip(layers, net.gains, strict=True), 1):
        h = gain * (h @ weight[0].T + (0.0 if bias is None else bias[0, :, 0]))
        if layer < net.depth:
            h = h.clamp_min(0) ** net.power
    return h.squeeze(-1)


def pulled_back(net, x, signal, many=True):
    weights, grad = net.unpack(net.theta), torch.zeros_like(net.theta)
    net.pullback(weights, net.evaluate(weights, net.prepare(x, many))[1], signal, net.unpack(grad))
    return grad


@pytest.mark.parametrize(("kind", "depth", "power"), SHAPES)
def test_output_is_the_definition(kind, depth, power):
    net, x = made(kind, depth, power), contexts()
    expected = torch.stack([written_out(net, net.theta[r], x[r]) for r in range(3)])
    if net.centered:
        expected -= torch.stack([written_out(net, net.theta0[r], x[r]) for r in range(3)])
    torch.testing.assert_close(net(x), expected)


@pytest.mark.parametrize(("kind", "depth", "power"), SHAPES)
def test_closed_form_gradients_equal_autograd(kind, depth, power):
    """Training (`pullback`) and confidence (`features`) both rest on these."""
    net, x = made(kind, depth, power), contexts()
    signal = torch.randn(3, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    pulled = pulled_back(net, x, signal)
    dense = net.features(x).dense() / net.scale
    for r in range(3):
        theta = net.theta[r].detach().clone().requires_grad_()
        rows = torch.stack(
            [torch.autograd.grad(out, theta, retain_graph=True)[0] for out in written_out(net, theta, x[r])]
        )
        torch.testing.assert_close(dense[r], rows)
        torch.testing.assert_close(pulled[r], signal[r] @ rows)


@pytest.mark.parametrize("kind", ["standard", "zhou"])
@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("dim", [1, 6, 7, 8, 9])
def test_inputs_laid_out_for_many_steps_are_the_same_inputs(kind, depth, dim):
    """Zeros that fill rows up to a multiple of eight, with the bias's 1 in them or not, are in no gradient."""
    net, x, signal = made(kind, depth, dim=dim), contexts(dim=dim), torch.ones(3, 7, dtype=torch.float64)
    torch.testing.assert_close(pulled_back(net, x, signal), pulled_back(net, x, signal, many=False))


@pytest.mark.parametrize(("kind", "depth", "power"), SHAPES)
def test_factored_inner_products_equal_explicit_ones(kind, depth, power):
    """<g, g'> = sum over layers (a.a')(d.d')."""
    g = made(kind, depth, power).features(contexts())
    torch.testing.assert_close(g.gram(g), g.dense() @ g.dense().mT)
    torch.testing.assert_close(g.square(), g.dense().square().sum(-1))
    assert g.size == g.dense().shape[-1]


@pytest.mark.parametrize("kind", ["zhou", "ntk"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_starts_at_exactly_zero(kind, dtype):
    """f(x; theta_0) = 0, not 1e-8: otherwise rounding, and not the tie-breaker, chooses the first arm."""
    net = made(kind, moved=False).to(dtype)
    assert (net(contexts().to(dtype)) == 0).all()


def test_zhou_is_mirrored():
    """blockdiag(W, W) and (w, -w) with doubled contexts: the raw output cancels too, up to rounding."""
    net = made("zhou", 3, moved=False)
    raw = net.evaluate(net.unpack(net.theta), net.prepare(contexts()))[0]
    assert raw.abs().max() < 1e-12
    first, middle, last = (layer.weight for layer in net.unpack(net.theta))
    torch.testing.assert_close(first[:, :4, :5], first[:, 4:, 5:])
    assert (first[:, :4, 5:] == 0).all() and (middle[:, 4:, :4] == 0).all()
    torch.testing.assert_close(last[..., :4], -last[..., 4:])


def test_initial_variances():
    """zhou 4/m and 2/m, ntk 1, standard 2/fan-in: within 5% over 10^4 and more entries."""
    big = {kind: made(kind, 3, replicas=4, width=200, dim=40, moved=False) for kind in ("zhou", "ntk", "standard")}
    first, middle, last = (layer.weight for layer in big["zhou"].unpack(big["zhou"].theta))
    assert middle[:, :100, :100].var().item() == pytest.approx(4 / 200, rel=0.05)
    assert first[:, :100, :40].var().item() == pytest.approx(4 / 200, rel=0.05)
    assert last.var().item() == pytest.approx(2 / 200, rel=0.2)
    assert big["ntk"].theta.var().item() == pytest.approx(1, rel=0.05)
    (first, bias), (middle, _), _ = map(big["standard"].apart, big["standard"].matrices(big["standard"].theta))
    assert first.var().item() == pytest.approx(2 / 40, rel=0.05)
    assert middle.var().item() == pytest.approx(2 / 200, rel=0.05)
    assert (bias == 0).all()


def test_hidden_signal_does_not_depend_on_the_power():
    """On unit contexts the first hidden layer has mean square 1/d for every sigma_s: what keeps sigma_2 alive."""
    x = torch.nn.functional.normalize(contexts(4, 50, 20), dim=-1)
    for power in (1, 2):
        net = made("standard", power=power, replicas=4, width=2000, dim=20, moved=False)
        hidden = net.evaluate(net.unpack(net.theta), net.prepare(x))[1][0][2]
        assert hidden.square().mean().item() == pytest.approx(1 / 20, rel=0.1)


def test_zhou_gradient_has_squared_norm_near_depth():
    """||g||^2 / m is about L for unit contexts: what makes the step size 1/(m lam + m L t) safe."""
    net = made("zhou", 3, replicas=8, width=400, dim=10, moved=False)
    x = torch.nn.functional.normalize(contexts(8, 20, 10), dim=-1)
    assert net.features(x).square().mean().item() == pytest.approx(3, rel=0.15)


def test_members_share_their_start_and_each_replica_has_its_own():
    net = made("standard", replicas=2, members=3, moved=False)
    theta = net.theta.view(2, 3, -1)
    assert (theta[:, 0] == theta[:, 1]).all() and (theta[:, 0] == theta[:, 2]).all()
    assert not torch.equal(theta[0, 0], theta[1, 0])
    assert net(contexts(2)).shape == (2, 3, 7)


def test_any_module_through_torch_func():
    """A module of the user's own gives what the library's own network of the same shape gives."""
    net = made("standard", replicas=2, moved=False)
    user = ModuleNetwork(lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)), 2).double()
    user.initialise(Streams([0, 1], "algorithm"), 0)
    assert not torch.equal(user.theta[0], user.theta[1])
    layers = map(net.apart, net.matrices(net.theta))
    user.theta.copy_(torch.cat([part.flatten(1) for layer in layers for part in layer], 1))
    x, signal = contexts(2), torch.ones(2, 7, dtype=torch.float64)
    torch.testing.assert_close(user(x), net(x))
    torch.testing.assert_close(user.features(x).square(), net.features(x).square() / net.scale**2)
    norms = [pulled_back(each, x, signal).square().sum(-1) for each in (user, net)]
    torch.testing.assert_close(*norms)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        ({"kind": "zhuo"}, "standard, zhou, ntk"),
        ({"width": 0}, "net.width=0"),
        ({"depth": 1}, "at least 2"),
        ({"kind": "zhou", "width": 7}, "even"),
        ({"widht": 50}, "widht"),
        (nn.ReLU(), "no parameters"),
    ],
)
def test_bad_options_are_named(net, words):
    with pytest.raises(NblError, match=words):
        build(net, 5, 2)
