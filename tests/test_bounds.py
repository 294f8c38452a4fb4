"""Radii as printed, and tail bounds that hold as often as they say."""

import math

import pytest
import torch

from nbl import bounds


def test_the_radii_are_the_printed_equations():
    """By hand, with S = 2, delta = 4/e, L = 4, C_1 = 1: log(4/delta) = 1, so lambda_0 = 8 sqrt(2) 2 / 2 = 8 sqrt(2).

    At t = 1 all logarithms are 1. With d = 1/4: lambda_1 = (64/4 + 16 * 4 / lambda_0) / 4 = 4 + 16 / lambda_0,
    iota_1 = 16/2 + 8 sqrt(4 / lambda_0), and nu = (1 + 2 * 2 + 4 * 4) iota + 1.
    """
    delta = 4 / math.e
    lam0 = bounds.lambda_0(2.0, delta, L=4)
    assert lam0 == pytest.approx(8 * math.sqrt(2))
    assert bounds.lambda_t(0.25, 1, lam0, 2.0, delta, L=4) == pytest.approx(4 + 16 / lam0)
    iota = bounds.iota_t(0.25, 1, lam0, delta, L=4)
    assert iota == pytest.approx(8 + 16 / math.sqrt(lam0))
    assert bounds.nu_t(iota, 2.0, L=4) == pytest.approx(21 * iota + 1)


def test_lambda_t_never_falls():
    """Both terms of (3) grow with t and with the log det; at t = 0 the logarithms take t = 1."""
    values = [bounds.lambda_t(0.1 * t, t, 70.0, 1.0, 0.05) for t in range(50)]
    assert values == sorted(values) and values[0] == bounds.lambda_t(0.0, 1, 70.0, 1.0, 0.05)


@pytest.mark.parametrize("shape", [(3, 7), (7, 3)])
def test_effective_dimension_is_the_log_det(shape):
    """Through either kernel; nothing played, or all zero, is dimension 0; one direction over and over stays low."""
    g = torch.randn(*shape, dtype=torch.float64)
    direct = torch.logdet(torch.eye(shape[1], dtype=torch.float64) + 0.3 * g.T @ g)
    torch.testing.assert_close(bounds.effective_dimension(g, 0.3), direct)
    assert bounds.effective_dimension(torch.zeros(4, 9), 1.0) == 0
    one = bounds.effective_dimension(g[:1].expand(50, -1), 1.0)
    assert one < bounds.effective_dimension(torch.randn(50, shape[1]) * g[0].norm(), 1.0)


def test_the_tail_bounds_hold():
    """200 martingales of 300 rounds at delta = 0.05: each bound may fail, at any t, in at most 5% of them, and 5% plus
    three standard errors (4.6%) is the most that chance may show.
    """
    found = bounds.simulate(runs=200, rounds=300, dim=40, used=4, lam=1.0)
    for name in ("theorem_3_1", "faury", "verma"):
        failed = (found.norm > getattr(found, name)).any(1).double().mean()
        assert failed <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200), name


def test_only_faurys_bound_sees_the_ambient_dimension():
    """The same data in 4 and in 400 dimensions: Theorem 3.1 does not move, Faury's grows by 2 * 396 log 2 (lam = 1)."""
    low, high = (bounds.simulate(runs=5, rounds=20, dim=dim, used=4, lam=1.0) for dim in (4, 400))
    assert torch.equal(low.theorem_3_1, high.theorem_3_1) and torch.equal(low.verma, high.verma)
    torch.testing.assert_close(high.faury - low.faury, torch.full_like(low.faury, 2 * 396 * math.log(2)))
