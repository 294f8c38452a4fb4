"""Confidence matrices that stand still, or that divide their points, against separate matrices."""

import math

import torch

from nbl.design import Dual
from nbl.gradient import Gradient
from nbl.levels import Held, Levels

R, P, M, LAM = 2, 6, 3, 0.5


def vectors(n, seed=0):
    return torch.randn(R, n, P, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(n=25):
    source = torch.Generator().manual_seed(3)
    g, weight = vectors(n), torch.rand(R, n, generator=source, dtype=torch.float64) * 2
    weight[0, 4] = 0.0
    level = torch.randint(M, (R, n), generator=source)
    design = Levels(R, P, LAM, M)
    design.put(Gradient.explicit(g), weight, level)
    return design, g, weight, level


def test_each_level_is_a_matrix_of_its_own():
    """One factor for all levels: widths and determinants are those of U_l = lam I + sum over level l, by definition."""
    design, g, weight, level = filled()
    probe = vectors(5, 1)
    widths = design.width(Gradient.explicit(probe))
    for m in range(M):
        U = LAM * torch.eye(P, dtype=torch.float64) + torch.einsum("rn,rni,rnj->rij", weight * (level == m), g, g)
        expected = torch.einsum("rni,rij,rnj->rn", probe, torch.linalg.inv(U), probe).sqrt()
        torch.testing.assert_close(widths[:, m], expected)
        torch.testing.assert_close(design.logdet()[:, m], torch.logdet(U) - P * math.log(LAM))


def test_levels_travel_and_reset():
    design, *_ = filled()
    copy, probe = Levels(R, P, LAM, M), Gradient.explicit(vectors(5, 1))
    copy.load_state_dict(design.state_dict())
    torch.testing.assert_close(copy.width(probe), design.width(probe))
    one, level = torch.ones(R, 1), torch.tensor([[0], [2]])
    for each in (design, copy):
        each.put(Gradient.explicit(vectors(1, 7)), one, level)
    assert torch.equal(copy.width(probe), design.width(probe))
    design.reset()
    fresh = Levels(R, P, LAM, M)
    assert torch.equal(fresh.width(probe), design.width(probe)) and not design.logdet().any()


def test_held_widths_stand_still_until_released_and_the_determinant_does_not():
    """Each replica at its own time; what it then shows is the matrix of all that was added."""
    held, live, probe = Held(R, P, LAM), Dual(R, P, LAM), Gradient.explicit(vectors(5, 1))
    before = held.width(probe)
    for design in (held, live):
        design.update(Gradient.explicit(vectors(10)))
    torch.testing.assert_close(held.width(probe), before)
    torch.testing.assert_close(held.logdet(), live.logdet())
    held.release(torch.tensor([True, False]))
    torch.testing.assert_close(held.width(probe)[0], live.width(probe)[0])
    torch.testing.assert_close(held.width(probe)[1], before[1])
    at_ten = live.width(probe)
    held.release()
    held.update(Gradient.explicit(vectors(4, 5)))
    torch.testing.assert_close(held.width(probe), at_ten)
    copy = Held(R, P, LAM)
    copy.load_state_dict(held.state_dict())
    torch.testing.assert_close(copy.width(probe), at_ten)
