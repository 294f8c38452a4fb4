"""G-optimal designs: the Kiefer-Wolfowitz bound, an independent solver, and rounding that keeps its totals."""

import pytest
import torch

from nbl_callbacks import g_optimal, minimum_pulls, round_design


def leverage(points, weights):
    """max x^T V^+ x, from the definition."""
    x, w = points.double(), weights.double()
    V = x.T @ (x * w[:, None])
    return ((x @ torch.linalg.pinv(V, rtol=1e-10)) * x).sum(-1).max()


CASES = {
    "sphere": lambda: torch.nn.functional.normalize(torch.randn(50, 20), dim=-1),
    "few": lambda: torch.randn(3, 6),
    "one": lambda: torch.randn(1, 4),
    "line": lambda: torch.linspace(-1, 1, 41)[:, None] ** torch.arange(4),
    "flat": lambda: torch.randn(40, 3) @ torch.randn(3, 8),
    "twice": lambda: torch.randn(10, 4).repeat(3, 1),
    "with_zeros": lambda: torch.cat([torch.zeros(5, 4), torch.randn(10, 4)]),
    "far_apart": lambda: torch.randn(30, 5) * 10.0 ** torch.arange(-3, 2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tol", [1e-1, 1e-2, 1e-5])
def test_no_point_is_above_the_rank_by_more_than_the_tolerance(name, tol):
    """Kiefer-Wolfowitz: the smallest possible greatest leverage is the rank of the points, whatever they are."""
    torch.manual_seed(0)
    points = CASES[name]()
    found = g_optimal(points, tol)
    assert found.rank == torch.linalg.matrix_rank(points.double(), rtol=1e-6)
    assert found.weights.min() >= 0 and found.weights.sum() == pytest.approx(1)
    assert found.leverage <= found.rank * (1 + tol)
    assert float(leverage(points, found.weights)) == pytest.approx(float(found.leverage), rel=1e-5)


@pytest.mark.parametrize("K, d", [(8, 3), (20, 4), (30, 6)])
def test_agrees_with_cvxpy(K, d):
    """By the equivalence theorem the G-optimal design is the one of greatest log det, a convex problem."""
    cvxpy = pytest.importorskip("cvxpy")
    torch.manual_seed(K)
    points = torch.randn(K, d, dtype=torch.float64)
    w = cvxpy.Variable(K, nonneg=True)
    x = points.numpy()
    problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.log_det(x.T @ cvxpy.diag(w) @ x)), [cvxpy.sum(w) == 1])
    best = problem.solve(solver=cvxpy.CLARABEL)
    found = g_optimal(points, 1e-7)
    ours = torch.logdet(points.T @ (points * found.weights[:, None]))
    assert float(ours) == pytest.approx(best, abs=1e-5)
    assert torch.allclose(found.weights, torch.tensor(w.value), atol=2e-3)


def test_known_designs():
    """Basis vectors: equal weights. A cubic on [-1, 1]: equal weights on -1, 1 and +-1/sqrt 5 (Fedorov 1972)."""
    assert torch.allclose(g_optimal(torch.eye(5)).weights, torch.full((5,), 0.2, dtype=torch.float64))
    t = torch.tensor([-1, -(0.2**0.5), -0.3, 0.0, 0.3, 0.2**0.5, 1], dtype=torch.float64)
    expected = torch.tensor([1, 1, 0, 0, 0, 1, 1], dtype=torch.float64) / 4
    assert torch.allclose(g_optimal(t[:, None] ** torch.arange(4), 1e-9).weights, expected, atol=1e-4)


def _flag(dtype):
    """Columns about 1000 and about 50000, and a flag set in row 7 alone."""
    x = torch.stack([1000 + 100 * torch.randn(5000), 50000 + 5000 * torch.randn(5000), torch.zeros(5000)], -1)
    x[7, 2] = 1
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_units_of_columns_do_not_hide_a_direction(dtype):
    torch.manual_seed(0)
    small = torch.randn(5000, 5)
    small[:, 2] *= 3e-4
    # 16 bits hold no 60000 and more
    for points in (small.to(dtype), _flag(dtype) if dtype != torch.float16 else _flag(torch.float32).div(2).half()):
        found = g_optimal(points)
        assert found.rank == points.shape[1] and found.leverage <= found.rank * 1.01
        x = points.double()
        x = x / x.norm(dim=0)
        assert float(leverage(x, found.weights)) == pytest.approx(float(found.leverage), rel=1e-6)
    assert found.weights[7] > 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_rounding_leaves_is_not_a_direction(dtype):
    """A column that is a sum of others, in any unit, and a million times the others' size."""
    torch.manual_seed(0)
    x = torch.randn(5000, 4, dtype=dtype)
    x = torch.cat([x, (x @ torch.randn(4, 2, dtype=dtype)) * 1e6], -1)
    assert g_optimal(x).rank == 4


def test_the_unit_of_a_column_does_not_change_the_design():
    torch.manual_seed(0)
    x = torch.randn(30, 3, dtype=torch.float64)
    scaled = g_optimal(x * torch.tensor([1e-200, 1.0, 1e200], dtype=torch.float64), 1e-8)
    assert torch.allclose(g_optimal(x, 1e-8).weights, scaled.weights, atol=1e-4)


def test_arms_in_any_layout():
    torch.manual_seed(0)
    x = torch.randn(4, 2, 6, 3)
    assert torch.allclose(g_optimal(x.transpose(0, 1)).weights, g_optimal(x).weights.transpose(0, 1))


def test_all_zero_points_have_some_design():
    found = g_optimal(torch.zeros(4, 3))
    assert found.weights.sum() == pytest.approx(1) and found.rank == 0 and found.leverage == 0


def test_a_replica_equals_a_design_of_its_own():
    """Of different ranks too."""
    torch.manual_seed(0)
    points = torch.randn(4, 12, 5, dtype=torch.float64)
    points[1] = points[1, :, :2] @ torch.randn(2, 5, dtype=torch.float64)
    points[2, 3:] = 0
    both = g_optimal(points, 1e-8)
    for r in range(4):
        alone = g_optimal(points[r], 1e-8)
        assert torch.allclose(both.weights[r], alone.weights, atol=1e-4) and both.rank[r] == alone.rank
    assert both.rank.tolist() == [5, 2, 3, 5]


@pytest.mark.parametrize("kind", ["sphere", "normal"])
def test_large_problems_take_few_steps(kind, recwarn):
    """K = 5000 arms in d = 100: seconds on one core, for a step costs two products with the arms (O(K d))."""
    torch.manual_seed(0)
    points = torch.randn(5000, 100)
    if kind == "sphere":
        points = torch.nn.functional.normalize(points, dim=-1)
    found = g_optimal(points, steps=4000)
    assert found.leverage <= 101 and not recwarn.list  # it warns when the steps run out


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.zeros(0, 3), torch.full((3, 2), torch.nan)])
def test_bad_points(bad):
    with pytest.raises(ValueError, match="g_optimal"):
        g_optimal(bad)


@pytest.mark.parametrize("tau", [1, 2, 7, 20, 100, 501])
def test_rounding_gives_exactly_tau_pulls_on_the_support(tau):
    torch.manual_seed(0)
    weights = torch.rand(6, 30, dtype=torch.float64) * (torch.rand(6, 30) < 0.5)
    weights /= weights.sum(-1, keepdim=True)
    pulls = round_design(weights, tau)
    assert (pulls.sum(-1) == tau).all() and (pulls >= 0).all() and (pulls[weights == 0] == 0).all()
    if tau >= 30:
        assert (pulls[weights > 0] >= 1).all()


def test_rounding_is_efficient():
    """Pukelsheim (2006, chapter 12): every share is at least (1 - support/tau) of the design's, so leverages grow by at
    most 1 / (1 - support/tau).
    """
    torch.manual_seed(0)
    points = torch.randn(50, 8)
    found = g_optimal(points)
    support = int((found.weights > 0).sum())
    for tau in (2 * support, 5 * support, 500):
        shares = round_design(found.weights, tau) / tau
        assert leverage(points, shares) <= found.leverage / (1 - support / tau) + 1e-9


def test_the_papers_floor_raises_the_total():
    """r(0.5)/K = (20*21/2 + 1)/0.5/50 = 422/50 = 8.44: nine pulls of every arm, 500 become more."""
    assert minimum_pulls(20, 50) == 9
    torch.manual_seed(0)
    weights = g_optimal(torch.randn(50, 20)).weights
    pulls = round_design(weights, 500, min_pulls=9)
    assert pulls.min() == 9 and pulls.sum() > 500
    assert torch.equal(pulls, round_design(weights, 500).clamp_min(9))


@pytest.mark.parametrize("tau", [0, -1, 2.5, True, 10**16])
def test_bad_totals(tau):
    with pytest.raises(ValueError, match="tau"):
        round_design(torch.ones(3) / 3, tau)


@pytest.mark.parametrize("floor", [2.5, -5, True])
def test_bad_floors(floor):
    with pytest.raises(ValueError, match="min_pulls"):
        round_design(torch.ones(3) / 3, 10, min_pulls=floor)


@pytest.mark.parametrize("weights", [torch.tensor(1.0), torch.ones(0), torch.ones(0, 3), torch.ones(2, 0)])
def test_weights_without_points(weights):
    with pytest.raises(ValueError, match="weights have shape"):
        round_design(weights, 10)


@pytest.mark.parametrize("weights", [torch.tensor([-1.0, 2]), torch.zeros(2), torch.full((2,), torch.inf)])
def test_weights_that_are_no_design(weights):
    with pytest.raises(ValueError, match="finite and 0 or more"):
        round_design(weights, 10)


def test_weights_in_any_layout_and_large_totals():
    weights = torch.rand(5, 3, 4, generator=torch.Generator().manual_seed(0))
    across = weights.transpose(0, 1)
    assert torch.equal(round_design(across, 20), round_design(across.contiguous(), 20))
    assert (round_design(across, 10**12).sum(-1) == 10**12).all()
