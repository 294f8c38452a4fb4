"""Links of duels: what a likelihood must be, and the exact minimum."""

import math

import pytest
import torch

from nbl.links import LINKS, Duels, link, minimise
from nbl.types import NblError

Z = torch.linspace(-6, 6, 41, dtype=torch.float64)
FORMULAS = {  # g(z), written anew
    "btl": lambda z: 1 / (1 + torch.exp(-z)),
    "thurstone": lambda z: 0.5 * (1 + torch.erf(z / math.sqrt(2))),
    "exponential": lambda z: torch.where(z > 0, 1 - torch.exp(-z) / 2, torch.exp(z) / 2),
}


@pytest.fixture(params=LINKS)
def g(request):
    found = link(request.param)
    found.formula = FORMULAS[request.param]
    return found


def test_all_four_are_one_function(g):
    """log g, its derivatives and the variance against the formula of g, the derivatives by autograd."""
    z = Z.clone().requires_grad_(True)
    chance = g.formula(z)
    (slope,) = torch.autograd.grad(chance.log().sum(), z, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), z)
    torch.testing.assert_close(g.chance(Z), chance.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(g.log(Z), chance.log().detach(), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(g.variance(Z), (chance * (1 - chance)).detach(), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(g.derivative(Z), slope.detach(), rtol=1e-6, atol=1e-7)
    inside = Z.abs() > 1e-9  # the Laplace density has a kink at 0
    torch.testing.assert_close(g.curvature(Z)[inside], -bend[inside], rtol=1e-5, atol=1e-6)


def test_wins_and_losses_add_up(g):
    """The noise is symmetric: g(z) + g(-z) = 1. The likelihood is log-concave, and finite far out."""
    torch.testing.assert_close(g.chance(Z) + g.chance(-Z), torch.ones_like(Z))
    assert (g.curvature(Z) >= 0).all() and (g.derivative(Z) > 0).all()
    far = torch.tensor([-1e4, -100.0, 100.0, 1e4])
    for value in (g.log(far), g.derivative(far), g.curvature(far), g.variance(far)):
        assert value.isfinite().all()


def test_the_minimum_is_exact_and_replicas_do_not_meet(g):
    """The gradient vanishes to rounding, from a bad first guess too, and a replica equals itself alone."""
    torch.manual_seed(0)
    x, won = torch.randn(3, 60, 4, dtype=torch.float64) * 3, (torch.rand(3, 60) < 0.5).double()
    weight, centre = torch.rand(3, 60, dtype=torch.float64) * 5, torch.randn(3, 4, dtype=torch.float64)
    loss, start = Duels(g), 20 * torch.randn(3, 4, dtype=torch.float64)
    theta = minimise(loss, x, won, weight, 0.7, centre, start)
    z = (x @ theta.unsqueeze(-1)).squeeze(-1)
    gradient = (x * (weight * loss.derivative(z, won)).unsqueeze(-1)).sum(1) + 0.7 * (theta - centre)
    assert gradient.abs().max() < 1e-8
    for r in range(3):
        one = slice(r, r + 1)
        alone = minimise(loss, x[one], won[one], weight[one], 0.7, centre[one], start[one])
        torch.testing.assert_close(alone[0], theta[r], rtol=1e-12, atol=1e-12)


def test_an_unknown_link_is_named():
    with pytest.raises(NblError, match="btl, thurstone"):
        link("probit")


def test_an_estimate_that_is_not_finite_is_an_error_with_a_cure():
    """x.theta is infinity less infinity."""
    x = torch.tensor([[[1e308, -1e308]]], dtype=torch.float64)
    one, start = torch.ones(1, 1), torch.full((1, 2), 10.0)
    with pytest.raises(NblError, match="scale"):
        minimise(Duels(link("btl")), x, one, one, 1.0, start, start)
