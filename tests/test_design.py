"""Every form of the confidence matrix, against its definition and the lemmas that regret proofs lean on."""

import math

import pytest
import torch

from nbl.design import Auto, Design, DesignError, Diagonal, Dual, Full, build
from nbl.gradient import Gradient
from nbl.networks import MLP
from nbl.rng import Streams
from nbl.types import NblError

R, P, LAM = 2, 6, 0.5


def auto(replicas, size, lam):
    return Auto(replicas, size, lam)  # turns from Dual to Full after `size` updates


EXACT = [Full, Dual, auto]


@pytest.fixture(params=[Diagonal, *EXACT])
def design(request):
    return request.param(R, P, LAM)


def vectors(n, seed=0, replicas=R, size=P):
    return torch.randn(replicas, n, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("make", EXACT)
@pytest.mark.parametrize("weighted", [False, True])
def test_exact_forms_equal_the_definition(make, weighted):
    design, g, probe = make(R, P, LAM), vectors(20), vectors(5, 1)
    w = (
        torch.rand(R, 20, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 3
        if weighted
        else torch.ones(R, 20)
    )
    design.update(Gradient.explicit(g), w)
    U = LAM * torch.eye(P, dtype=torch.float64) + torch.einsum("rn,rni,rnj->rij", w.double(), g, g)
    expected = torch.einsum("rni,rij,rnj->rn", probe, torch.linalg.inv(U), probe).sqrt()
    torch.testing.assert_close(design.width(Gradient.explicit(probe)), expected)
    torch.testing.assert_close(design.logdet(), torch.logdet(U) - P * math.log(LAM))


def test_diagonal_is_the_diagonal():
    design, g, probe = Diagonal(R, P, LAM), vectors(20), vectors(5, 1)
    design.update(Gradient.explicit(g))
    diagonal = LAM + g.square().sum(1)
    torch.testing.assert_close(
        design.width(Gradient.explicit(probe)), (probe.square() / diagonal[:, None]).sum(-1).sqrt()
    )
    torch.testing.assert_close(design.logdet(), (diagonal / LAM).log().sum(-1))


@pytest.mark.parametrize("kind", ["zhou", "standard"])
def test_dual_full_and_the_explicit_inverse_agree_over_300_rounds_of_changing_weights(kind):
    """Gradients are taken at a theta that moves every round, as in NeuralUCB and NeuralTS."""
    net = MLP(3, R, kind=kind, width=6).double()
    net.initialise(Streams(range(R), "algorithm"), 0)
    designs = [make(R, net.size, 0.1) for make in EXACT]
    U = 0.1 * torch.eye(net.size, dtype=torch.float64).repeat(R, 1, 1)
    for t in range(300):
        net.theta += 0.02 * vectors(1, 1000 + t, R, net.size)[:, 0]
        g = net.features(vectors(4, t, R, 3))
        widths = [design.width(g) for design in designs]
        dense = g.dense()
        expected = torch.einsum("rni,rij,rnj->rn", dense, torch.linalg.inv(U), dense).sqrt()
        for width in widths:
            torch.testing.assert_close(width, expected, rtol=1e-5, atol=1e-9)
        for design in designs:
            design.update(g.point(0))
        U += dense[:, 0, :, None] * dense[:, 0, None, :]
    for design in designs:
        torch.testing.assert_close(design.logdet(), torch.logdet(U) - net.size * math.log(0.1), rtol=1e-6, atol=0)


def test_elliptical_potential(design):
    """sum_t min(1, width_t^2) <= 2 logdet: the lemma every regret proof leans on."""
    potential = torch.zeros(R, dtype=torch.float64)
    for t in range(300):
        g = Gradient.explicit(vectors(1, t))
        potential += design.width(g).squeeze(1).square().clamp_max(1)
        design.update(g)
    assert (potential <= 2 * design.logdet()).all()


def test_widths_never_grow(design):
    probe, last = Gradient.explicit(vectors(8, 99)), torch.full((R, 8), math.inf, dtype=torch.float64)
    for t in range(40):
        width = design.width(probe)
        assert (width <= last * (1 + 1e-12)).all()
        last = width
        design.update(Gradient.explicit(vectors(1, t)))


def test_a_direction_never_pulled_keeps_its_width(design):
    """Pull everything but the last coordinate; no ridge may leak in at updates."""
    probe = torch.zeros(R, 1, P, dtype=torch.float64)
    probe[..., -1] = 1.0
    for t in range(50):
        g = vectors(1, t)
        g[..., -1] = 0.0
        design.update(Gradient.explicit(g))
    torch.testing.assert_close(
        design.width(Gradient.explicit(probe)), torch.full((R, 1), LAM**-0.5, dtype=torch.float64)
    )


@pytest.mark.parametrize("kind", ["diagonal", "full", "dual", "auto"])
def test_larger_lam_is_narrower(kind):
    probe = Gradient.explicit(vectors(5))
    widths = [build(kind, R, P, lam).width(probe) for lam in (0.1, 1.0, 10.0)]
    assert (widths[0] > widths[1]).all() and (widths[1] > widths[2]).all()


def test_weight_zero_is_no_observation_and_scoring_changes_nothing(design):
    design.update(Gradient.explicit(vectors(3)))
    probe = Gradient.explicit(vectors(5, 1))
    before = design.width(probe)
    design.update(Gradient.explicit(vectors(1, 7)), torch.zeros(R, 1))
    torch.testing.assert_close(design.width(probe), before)
    assert torch.equal(design.width(probe), design.width(probe))


def test_reset_is_a_new_matrix(design):
    probe = Gradient.explicit(vectors(5, 1))
    before = design.width(probe)
    design.update(Gradient.explicit(vectors(9)))
    design.reset()
    assert torch.equal(design.width(probe), before) and (design.logdet() == 0).all()
    design.update(Gradient.explicit(vectors(9)))
    assert (design.width(probe) < before).all()


def test_auto_turns_and_agrees():
    """Dual, then Full after p updates; results agree to 1e-8 over the turn."""
    moving, dual = Auto(R, P, LAM), Dual(R, P, LAM)
    probe = Gradient.explicit(vectors(5, 99))
    for t in range(3 * P):
        for design in (moving, dual):
            design.update(Gradient.explicit(vectors(1, t)))
        torch.testing.assert_close(moving.width(probe), dual.width(probe), rtol=1e-8, atol=0)
    assert isinstance(moving.form, Full)
    assert isinstance(Auto(R, P, LAM, horizon=P).form, Dual) and Auto(R, P, LAM, horizon=P).turn is None
    assert Auto(1, 100_000, LAM).turn is None


def test_cancellation_at_small_lam():
    """2000 pulls of nearly one direction at lam = 1e-3: the difference keeps 6 digits where float32 would keep none."""
    g = torch.randn(1, 1, P, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    played = g + 1e-3 * vectors(2000, 5, 1)
    dual, full = Dual(1, P, 1e-3), Full(1, P, 1e-3)
    dual.update(Gradient.explicit(played))
    full.update(Gradient.explicit(played))
    U = 1e-3 * torch.eye(P, dtype=torch.float64) + played[0].T @ played[0]
    expected = (g[0] @ torch.linalg.inv(U) @ g[0].T).sqrt()
    torch.testing.assert_close(dual.width(Gradient.explicit(g)), expected, rtol=1e-6, atol=0)


def test_float64_whatever_the_network(design):
    """Casting the module (precision plugins do) leaves the confidence matrix alone."""
    design.update(Gradient.explicit(vectors(3)))
    before = design.width(Gradient.explicit(vectors(5, 1)))
    design.to(torch.bfloat16)
    torch.testing.assert_close(design.width(Gradient.explicit(vectors(5, 1))), before, rtol=0, atol=0)


def test_state_travels(design):
    """Saved without spare room, loaded into a new one of any size, and going on exactly."""
    design.update(Gradient.explicit(vectors(9)))
    state = design.state_dict()
    other: Design = type(design)(R, P, LAM)
    other.load_state_dict(state)
    for t in range(5):
        for each in (design, other):
            each.update(Gradient.explicit(vectors(1, t)))
    probe = Gradient.explicit(vectors(5, 1))
    assert torch.equal(design.width(probe), other.width(probe))
    assert torch.equal(design.logdet(), other.logdet())


@pytest.mark.parametrize("lam", [0.0, -1.0, math.inf, math.nan])
def test_bad_lam(lam):
    with pytest.raises(NblError, match="lam="):
        build("dual", R, P, lam)


def test_a_width_that_is_not_a_number_is_an_error(design):
    """Never a silent zero: that would be another algorithm."""
    with pytest.raises(DesignError, match=r"lower `fit\.lr`"):
        design.width(Gradient.explicit(vectors(2) * math.nan))


def test_unknown_kind():
    with pytest.raises(NblError, match="auto, dual, full, diagonal"):
        build("dula", R, P, 1.0)


def test_bands_of_the_dual_factor_leave_out_only_zeros(monkeypatch):
    """Products by bands of three rows and in one piece give the same widths and the same factor."""
    found = []
    for band in (3, 10_000):
        monkeypatch.setattr("nbl.design.dual.BAND", band)
        torch.manual_seed(0)
        dual, g = Dual(2, 7, 0.5), torch.randn(2, 20, 7, dtype=torch.float64)
        dual.update(Gradient.explicit(g))
        found.append((dual.width(Gradient.explicit(g + 1)), dual.factor[:, :20, :20]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("kind", ["dual", "full", "diagonal", "auto"])
def test_a_ridge_that_moves_is_a_rescaled_matrix(kind):
    """rescale(f) leaves what a fresh design with all weights times f would be, only in the replicas asked for, and both
    go on growing alike.
    """
    R, P, n = 3, 6, 9
    gradients = torch.randn(n + 2, R, P, dtype=torch.float64)
    factor, who = torch.tensor([0.3, 2.0, 0.5], dtype=torch.float64), torch.tensor([True, True, False])
    moved, fresh = (build(kind, R, P, 0.7) for _ in range(2))
    weight = torch.where(who, factor, 1.0)
    for g in gradients[:n]:
        moved.update(Gradient.explicit(g[:, None]), torch.ones(R, 1))
        fresh.update(Gradient.explicit(g[:, None]), weight[:, None])
    moved.rescale(factor, who)
    for g in gradients[n:]:
        torch.testing.assert_close(
            moved.width(Gradient.explicit(g[:, None])), fresh.width(Gradient.explicit(g[:, None]))
        )
        torch.testing.assert_close(moved.logdet(), fresh.logdet())
        for design in (moved, fresh):
            design.update(Gradient.explicit(g[:, None]), torch.ones(R, 1))


def test_a_factor_of_another_make_is_refused():
    """Checkpoints once kept a vector as an outer product with ones: read as a vector it would be another matrix."""
    design, g = Dual(R, P, LAM), Gradient.explicit(vectors(1))
    design.update(g)
    design.register_buffer("a_0", torch.ones(R, 16, P + 1, dtype=torch.float64))
    design.register_buffer("d_0", torch.ones(R, 16, 1, dtype=torch.float64))
    with pytest.raises(NblError, match="older"):
        design.width(g)
