"""Pairs: how often a difference is seen that is not there, and that what is written says what was found."""

import math

import numpy as np
import pytest

from nbl.report.compare import TIE, band, holm, interval, pairs, two_sided, wins
from nbl.types import NblError


def values(means, n=10, spread=1.0, seed=0):
    """label -> seed -> value; seeds share their luck."""
    rng = np.random.default_rng(seed)
    luck = rng.normal(0, 10, n)
    return {k: dict(enumerate(m + luck + spread * rng.normal(size=n))) for k, m in means.items()}


def test_holm_by_hand():
    """p = .01, .04, .03 of three: 3 x .01 = .03; then 2 x .03 = .06; then 1 x .04, not below the last: .06."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == [] and holm([0.6, 0.7]) == [1.0, 1.0]


@pytest.mark.parametrize("test", ["t", "wilcoxon"])
def test_equals_are_told_apart_in_one_comparison_in_twenty_at_most(test, monkeypatch):
    """Five equal algorithms make ten pairs: with Holm's correction any false winner is rare, without it common."""
    monkeypatch.setattr("nbl.report.compare.RESAMPLES", 5)
    equal, tries = dict.fromkeys("abcde", 50.0), 200
    false = {c: 0 for c in ("holm", "none")}
    for seed in range(tries):
        for correction in false:
            found = pairs(values(equal, seed=seed), correction=correction, test=test)
            false[correction] += any(pair.winner != TIE for pair in found)
    assert false["holm"] / tries < 0.1 < 0.15 < false["none"] / tries


def test_a_shared_seed_shows_what_spread_hides():
    """The luck of a seed has an sd of 10, the difference is 3: paired it is seen."""
    (pair,) = pairs(values({"a": 50.0, "b": 53.0}))
    assert pair.winner == "a" and pair.n == 10 and pair.low < pair.difference < pair.high < 0
    (other,) = pairs(values({"a": 50.0, "b": 53.0}), lower_wins=False)
    assert other.winner == "b"


def test_only_shared_seeds_are_compared():
    a, b = {0: 1.0, 1: 2.0, 2: 3.0, 9: 1e9}, {0: 2.0, 1: 3.1, 2: 4.0, 5: -1e9}
    (pair,) = pairs({"a": a, "b": b})
    assert pair.n == 3 and pair.difference == pytest.approx(-3.1 / 3)
    (none,) = pairs({"a": {0: 1.0}, "b": {1: 2.0}})
    assert none.n == 0 and none.winner == TIE and math.isnan(none.difference) and none.p == 1.0


def test_wins_ties_and_losses_add_up():
    found = pairs(values({"a": 10.0, "b": 50.0, "c": 50.1, "d": 90.0}))
    score = wins(found, "abcd")
    assert score == {"a": (3, 0, 0), "b": (1, 1, 1), "c": (1, 1, 1), "d": (0, 0, 3)}


def test_two_sided_is_symmetric_and_sure_of_equals():
    x, y = np.array([1.0, 2.0, 4.0]), np.array([2.0, 2.5, 6.0])
    for test in ("t", "wilcoxon"):
        assert two_sided(x, y, test) == pytest.approx(two_sided(y, x, test))
        assert two_sided(x, x, test) == 1.0 and two_sided(x[:1], y[:1], test) == 1.0
    from scipy.stats import ttest_rel

    assert two_sided(x, y) == pytest.approx(ttest_rel(x, y).pvalue)


def test_bootstrap_intervals_cover_the_mean():
    """Of 30 normal values, about 95 times in 100; the same values give the same interval."""
    rng = np.random.default_rng(0)
    samples = rng.normal(5.0, 2.0, (200, 30))
    hits = [low <= 5.0 <= high for low, high in map(interval, samples)]
    assert 0.88 <= np.mean(hits) <= 0.99
    assert interval(samples[0]) == interval(samples[0].copy())
    low, high = band(samples[0][:, None] * np.ones((1, 4)))
    assert low.tolist() == [interval(samples[0])[0]] * 4 and (low < high).all()
    assert np.isnan(band(np.ones((1, 3)))[0]).all()


@pytest.mark.parametrize("bad", [{"test": "z"}, {"correction": "bonferoni"}, {"level": 0.0}, {"level": 5.0}])
def test_bad_settings_are_named(bad):
    with pytest.raises(NblError, match=str(next(iter(bad.values())))):
        pairs({"a": {0: 1.0}, "b": {0: 2.0}}, **bad)
