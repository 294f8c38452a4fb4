"""Selection rules of duels: against loops written from the paper's listings, with and without forbidden arms."""

import math

import pytest
import torch

from nbl import explore, pairs

K = 5


@pytest.fixture(params=range(4))
def round_(request):
    """Means (K,), widths (K, K) of gradient differences, and a normal draw (K, K)."""
    torch.manual_seed(request.param)
    g = torch.randn(K, 3, dtype=torch.float64)
    return torch.randn(K, dtype=torch.float64), pairs.widths(g @ g.T), torch.randn(K, K, dtype=torch.float64)


def best(scores):
    """The pair that would be played: no ties here."""
    return divmod(int(explore.pick(explore.tied(scores.flatten()), torch.rand(scores.numel()).to(scores))), K)


def test_widths_are_norms_of_differences(round_):
    g = torch.randn(2, K, 3, dtype=torch.float64)
    found = pairs.widths(g @ g.mT)
    torch.testing.assert_close(found, torch.cdist(g, g), atol=1e-7, rtol=1e-7)
    assert (found.diagonal(dim1=-2, dim2=-1) == 0).all()


def test_asym_is_listing_2(round_):
    mean, width, noise = round_
    for bonus in (0.7 * width, 0.7 * width * noise):
        first = int(mean.argmax())
        second = max(range(K), key=lambda j: float(mean[j] + bonus[first, j]))
        assert best(pairs.asym(mean, mean.unsqueeze(-2) + bonus)) == (first, second)


def test_osym_is_listing_3(round_):
    mean, width, noise = round_
    bonus = 2.0 * width * noise
    value = {(i, j): float(mean[i] + mean[j] + bonus[i, j]) for i in range(K) for j in range(K)}
    assert best(pairs.osym(mean, bonus)) == max(value, key=value.get)
    first, second = best(pairs.osym(mean, 2.0 * width))  # symmetric: both orders tie, and either may be played
    value = {(i, j): float(mean[i] + mean[j] + 2 * width[i, j]) for i in range(K) for j in range(K)}
    assert value[first, second] == pytest.approx(max(value.values()))


def test_csym_is_section_4_2(round_):
    """Arms that no other leads by more than the bonus; of these the widest pair. The best mean is always in the set."""
    mean, width, noise = round_
    for a in (0.0, 0.3, 3.0):
        chosen = [k for k in range(K) if all(a * width[k, j] >= mean[j] - mean[k] for j in range(K) if j != k)]
        found = pairs.candidates(mean, a * width)
        assert found.nonzero().flatten().tolist() == chosen and bool(found[mean.argmax()])
        pair = best(pairs.csym(found, width))
        assert set(pair) <= set(chosen) and width[pair] == max(width[i, j] for i in chosen for j in chosen)
    t, w2 = 7, width.square()
    drawn = w2 + noise * w2 / math.sqrt(4 * math.log(K * t * t))  # N(w^2, w^4 / (4 log(K t^2)))
    torch.testing.assert_close(pairs.exploring(width, t, noise), drawn)


def test_a_forbidden_arm_is_in_no_pair(round_):
    mean, width, noise = round_
    mean = mean.index_fill(0, mean.topk(2).indices, -torch.inf)
    for scores in (
        pairs.asym(mean, mean.unsqueeze(-2) + width),
        pairs.osym(mean, width * noise),
        pairs.csym(pairs.candidates(mean, 100 * width), width),
    ):
        assert not scores.isnan().any()
        assert all(mean[k].isfinite() for k in best(scores))


def test_arms_that_tie_for_first_have_equal_chances():
    """Two best arms whose competitors are worth differently: each is first as often as it has best seconds."""
    mean = torch.tensor([1.0, 1.0, 0.0])
    second = torch.tensor([[0.0, 3.0, 1.0], [0.5, 0.0, 0.2], [9.0, 9.0, 9.0]])
    chance = explore.share(explore.tied(pairs.asym(mean, second).flatten()), mean.dtype).view(3, 3)
    assert chance[0, 1] == chance[1, 0] == 0.5
