"""The closed-form kernel against quadrature, the printed formula and its own network; dimensions; confidence."""

import math

import pytest
import torch
from scipy import integrate

from nbl import ntk
from nbl.networks import MLP
from nbl.rng import Streams
from nbl.types import NblError


def points(n=6, dim=5, seed=0, unit=False):
    x = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True) if unit else x


@pytest.mark.parametrize("s", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.6])
def test_dual_activation_is_the_expectation(s, rho):
    """c_s E[u^s v^s; u, v > 0] in polar coordinates: v = rho u + sqrt(1 - rho^2) w, both positive in a wedge."""
    c = 2.0 / math.prod(range(1, 2 * s, 2))
    radial = 2**s * math.factorial(s)  # of r^(2s+1) exp(-r^2/2)
    root = math.sqrt(1 - rho * rho)
    angular = integrate.quad(
        lambda a: (math.cos(a) * (rho * math.cos(a) + root * math.sin(a))) ** s,
        -math.asin(rho),
        math.pi / 2,
    )[0]
    expected = c * radial * angular / (2 * math.pi)
    assert ntk.dual(torch.tensor(rho, dtype=torch.float64), s).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("s", [2, 3, 4])
def test_fact_3(s):
    """sigma-bar_s' = s^2/(2s-1) sigma-bar_{s-1}; the ends are 0 and 1."""
    rho = torch.linspace(-0.95, 0.95, 9, dtype=torch.float64)
    slope = (ntk.dual(rho + 1e-5, s) - ntk.dual(rho - 1e-5, s)) / 2e-5
    torch.testing.assert_close(slope, ntk.slope(s) * ntk.dual(rho, s - 1), atol=1e-7, rtol=0)
    ends = ntk.dual(torch.tensor([-1.0, 1.0], dtype=torch.float64), s)
    torch.testing.assert_close(ends, torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_two_layer_relu_kernel_is_the_printed_one():
    """GCB section 2.1, on the sphere."""
    x = points(unit=True)
    u = (x @ x.T).clamp(-1, 1)
    angle = math.pi - u.arccos()
    printed = (u * angle + (1 - u * u).sqrt()) / math.pi + u * angle / math.pi
    torch.testing.assert_close(ntk.kernel(x), printed)


@pytest.mark.parametrize(
    ("kind", "depth", "power", "width", "share"),
    [("ntk", 2, 1, 4096, 0.05), ("ntk", 2, 2, 4096, 0.10), ("ntk", 3, 1, 256, 0.15), ("zhou", 2, 1, 4096, 0.05)],
)
def test_kernel_is_the_networks(kind, depth, power, width, share):
    """g.g' of wide networks, over 20 draws of theta_0, at points of any norm. RMS relative to the mean diagonal."""
    x, R = points(), 20
    net = MLP(5, R, kind=kind, depth=depth, power=power, width=width).double()
    net.initialise(Streams(range(R), "algorithm"), 0)
    g = net.features(x.expand(R, -1, -1))
    exact = ntk.kernel(x, kind=kind, depth=depth, power=power)
    if kind == "zhou":  # H counts the weights that are not zero at the start; over all of them it is the `ntk` kernel
        own = g.dense() * (net.theta0 != 0).unsqueeze(1)
        assert error(own @ own.mT, exact) < share
        exact = ntk.kernel(x, depth=depth)
    assert error(g.gram(g), exact) < share


@pytest.mark.parametrize("power", [1, 2, 3])
def test_error_falls_like_one_over_root_width(power):
    """Lemma 1: 16 times the width is a quarter of the error (here: between an eighth and a half)."""
    x, R, errors = points(unit=True), 40, []
    for width in (64, 1024):
        net = MLP(5, R, kind="ntk", power=power, width=width).double()
        net.initialise(Streams(range(R), "algorithm"), 0)
        g = net.features(x.expand(R, -1, -1))
        errors.append(error(g.gram(g), ntk.kernel(x, power=power)))
    assert 0.125 < errors[1] / errors[0] < 0.5


def error(found, exact):
    return ((found - exact).square().mean().sqrt() / exact.diagonal().mean()).item()


def test_kernel_is_positive_and_takes_zero_vectors():
    x = torch.cat([points(12), torch.zeros(1, 5, dtype=torch.float64)])
    for power in (1, 2, 3):
        k = ntk.kernel(x, depth=3, power=power)
        assert k.isfinite().all() and (k[-1] == 0).all()
        assert torch.linalg.eigvalsh(k).min() > -1e-9 * k.diagonal().max()


def test_dimensions_by_hand():
    """K = c I of n points: every eigenvalue is c."""
    K, n, c, lam, T = 3.0 * torch.eye(4, dtype=torch.float64), 4, 3.0, 0.5, 100
    gain = n * math.log(1 + c / lam)
    assert ntk.information_gain(K, lam).item() == pytest.approx(gain)
    expected = {
        "gcb": n * c / (c + lam),
        "ts": gain / math.log(1 + n / lam),
        "log": n * math.log(1 + 0.25 * c / lam),
        "es": n * math.log(1 + T * c / lam) / math.log(1 + T * n / lam),
    }
    for kind, value in expected.items():
        assert ntk.effective_dimension(K, lam, kind, horizon=T).item() == pytest.approx(value)


def test_dimension_and_gain_bound_each_other():
    """tr(K (K + lam)^-1) <= log det(I + K/lam), since x/(1+x) <= log(1+x)."""
    K = ntk.kernel(points(50, unit=True))
    assert ntk.effective_dimension(K, 0.1) <= ntk.information_gain(K, 0.1)
    assert ntk.effective_dimension(K, 0.1) <= 50


@pytest.mark.parametrize(
    "call",
    [
        lambda K: ntk.kernel(K, kind="deep"),
        lambda K: ntk.kernel(K, kind="zhou", power=2),
        lambda K: ntk.kernel(K, depth=1),
        lambda K: ntk.information_gain(K, 0.0),
        lambda K: ntk.effective_dimension(K, 1.0, "none"),
        lambda K: ntk.effective_dimension(K, 1.0, "es"),
        lambda K: ntk.radius(1.0, 0.1, 0.0),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(NblError):
        call(torch.eye(3))


# Theorem 2 ------------------------------------------------------------------------------------------------------------


def drawn(problems, n, probes, power, norm=1.0, noise=0.1, seed=0, anchors=20):
    """Functions of norm S from the kernel's space, data at points drawn without looking at the noise, new points.

    h = sum_j a_j k(z_j, .) with a scaled so that a' k(z, z) a = S^2.
    """
    source = torch.Generator().manual_seed(seed)
    x, z, new = (_sphere(problems, count, 6, source) for count in (n, anchors, probes))
    a = torch.randn(problems, anchors, 1, generator=source, dtype=torch.float64)
    k = ntk.kernel(z, power=power)
    a = a * norm / (a.mT @ k @ a).sqrt()
    h = (ntk.kernel(torch.cat([x, new], 1), z, power=power) @ a).squeeze(-1)
    y = h[:, :n] + noise * torch.randn(problems, n, generator=source, dtype=torch.float64)
    return x, y, new, h[:, n:]


def _sphere(problems, n, dim, source):
    x = torch.randn(problems, n, dim, generator=source, dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("lam", [0.05, 1.0])
@pytest.mark.parametrize("delta", [0.1, 0.5])
def test_theorem_2_covers_at_least_at_the_promised_rate(power, lam, delta):
    """|h(x) - f_NTK(x)| <= beta sigma(x) with probability 1 - delta, one x a problem: 800 problems and as many draws
    of the noise. Promised for lam <= 1, for points that do not depend on the noise, and for kernel ridge regression.
    """
    x, y, new, h = drawn(800, 30, 1, power)
    K, cross = ntk.kernel(x, power=power), ntk.kernel(new, x, power=power)
    prior = ntk.kernel(new, power=power)[..., 0]
    mean, width = ntk.ridge(K, y, cross, prior, lam)
    missed = ((h - mean).abs() > ntk.radius(1.0, 0.1, delta) * width).double().mean().item()
    assert missed <= delta


def test_where_the_interval_is_tight_a_third_of_it_is_not_enough():
    """h = 0 and one point measured 40 times: the estimate is nu sigma(x) times a standard normal, up to lam. The
    theorem's 2 sqrt(log 1/delta) covers it at the rate, a third of that does not. The width is as wide as it must be.
    """
    x = points(1, 6, unit=True)
    y = torch.randn(4000, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    K = ntk.kernel(x)
    mean, width = ntk.ridge(K.expand(4000, 40, 40), y, K.expand(4000, 1, 40), K[0].expand(4000, 1), 0.05)
    beta = ntk.radius(0.0, 1.0, 0.3)
    assert (mean.abs() > beta * width).double().mean() <= 0.3
    assert (mean.abs() > beta / 3 * width).double().mean() > 0.3


def test_a_wide_trained_network_covers_too():
    """The same with f(x; W_t), trained to convergence from W_0, and sigma from its own gradients: Theorem 2 as it is
    stated, at width 512 and for 40 networks at once.
    """
    from nbl.history import Data
    from nbl.inner import Fit

    problems, lam, delta = 40, 0.5, 0.1
    x, y, new, h = drawn(problems, 20, 5, 1)
    net = MLP(6, problems, kind="ntk", width=512).double()
    net.initialise(Streams(range(problems), "algorithm"), 0)
    train = Fit(net, lam, optimizer="gd", lr="theory", steps=600, scale="sum", ridge=None, towards="start").double()
    train(net, Data(x, y.unsqueeze(1), torch.ones_like(y), torch.zeros(problems, 1, dtype=torch.float64)), 20)
    g, at = net.features(x, net.theta0), net.features(new, net.theta0)
    mean, width = ntk.ridge(g.gram(g), y, at.gram(g), at.square(), lam)
    assert ((net(new) - mean).abs() < 0.1 * ntk.radius(1.0, 0.1, delta) * width).all()  # Theorem 1
    missed = ((h - net(new)).abs() > ntk.radius(1.0, 0.1, delta) * width).double().mean()
    assert missed <= delta
