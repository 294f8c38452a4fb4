"""Random numbers are a function of (seed, purpose, round), and look random."""

from __future__ import annotations

import copy

import pytest
import torch
from scipy import stats

from nbl.rng import Streams

SEEDS = (3, 4, 5)
KINDS = ("uniform", "normal")


def draws(streams, kind, purpose, rounds, n):
    """(R, rounds * n): the rounds side by side."""
    return torch.cat([getattr(streams, kind)(purpose, t, (n,)) for t in rounds], dim=1)


@pytest.mark.parametrize("kind", KINDS)
def test_asking_twice_in_any_order_gives_the_same(kind):
    """There is no state: neither other rounds, nor other purposes, nor writing to the answer disturb a draw."""
    streams = Streams(SEEDS, "test")
    first = {t: getattr(streams, kind)("x", t, (4, 2)) for t in (0, 1, 700, 3)}
    kept = {t: x.clone() for t, x in first.items()}
    for x in first.values():
        x.zero_()
    getattr(streams, kind)("y", 5, (9,))
    for t in (3, 700, 1, 0):
        assert torch.equal(getattr(streams, kind)("x", t, (4, 2)), kept[t])
        assert torch.equal(getattr(Streams(SEEDS, "test"), kind)("x", t, (4, 2)), kept[t])
        assert torch.equal(getattr(copy.deepcopy(streams), kind)("x", t, (4, 2)), kept[t])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (1,), (50, 20), (300, 200)])
def test_a_replica_equals_a_run_of_its_own(kind, shape):
    """Replica r of a batch draws what a single run with that seed draws, whether or not rounds are drawn ahead."""
    batch = Streams(SEEDS, "test")
    for t in (1, 2, 999):
        together = getattr(batch, kind)("x", t, shape)
        assert together.shape == (len(SEEDS), *shape) and together.dtype == torch.float64
        for r, seed in enumerate(SEEDS):
            assert torch.equal(getattr(Streams([seed], "test"), kind)("x", t, shape)[0], together[r])


def test_round_zero_is_not_drawn_ahead():
    """Problems and weights are asked for once, and may be large: keeping a block of them would be waste."""
    streams = Streams(SEEDS, "test")
    streams.normal("A", 0, (20, 20))
    assert not streams._blocks


def test_nothing_touches_the_global_generator():
    """A draw neither reads nor moves torch's own generator."""
    torch.manual_seed(0)
    before, state = Streams(SEEDS, "test").normal("x", 1, (5,)), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(Streams(SEEDS, "test").normal("x", 1, (5,)), before)
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("n", [1, 4, 1000])
def test_uniforms_and_normals_have_their_law(n):
    """Kolmogorov-Smirnov over many rounds, small and large draws; a right law rarely has a p-value below 1e-4."""
    rounds = range(1, 1 + 20_000 // n)
    for seed in (0, 1, 123456789):
        streams = Streams([seed], "test")
        assert stats.kstest(draws(streams, "uniform", "x", rounds, n)[0].numpy(), "uniform").pvalue > 1e-4
        assert stats.kstest(draws(streams, "normal", "x", rounds, n)[0].numpy(), "norm").pvalue > 1e-4


def test_uniforms_stay_inside_the_open_interval():
    """The logarithm of Box-Muller needs u > 0."""
    u = Streams(range(10), "test").uniform("x", 1, (100_000,))
    assert (u > 0).all() and (u < 1).all()


def test_different_keys_are_uncorrelated():
    """Neighbouring seeds, rounds, purposes, domains and places share nothing: |correlation| < 5 / sqrt(n)."""
    n = 20_000
    streams = Streams([0, 1], "test")
    base = streams.normal("x", 1, (n,))
    others = {
        "seed": base[1],
        "round": streams.normal("x", 2, (n,))[0],
        "purpose": streams.normal("y", 1, (n,))[0],
        "domain": Streams([0], "other").normal("x", 1, (n,))[0],
        "place": base[0].roll(1),
    }
    for key, other in others.items():
        correlation = torch.corrcoef(torch.stack([base[0], other]))[0, 1]
        assert abs(correlation) < 5 / n**0.5, key


def test_one_place_over_rounds_and_seeds_is_uncorrelated():
    """What matters to a bandit is the series in t of one number, and one number over seeds."""
    series = draws(Streams([7], "test"), "normal", "x", range(1, 10_001), 1)[0]
    over_seeds = Streams(range(10_000), "test").normal("x", 1, (1,))[:, 0]
    for x in (series, over_seeds):
        assert stats.kstest(x.numpy(), "norm").pvalue > 1e-4
        for lag in (1, 2, 256):
            assert abs(torch.corrcoef(torch.stack([x[lag:], x[:-lag]]))[0, 1]) < 5 / len(x) ** 0.5
