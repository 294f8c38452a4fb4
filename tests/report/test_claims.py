"""Verdicts: how often they are wrong when they should not be, and how often right when they can be."""

import numpy as np
import pytest

from nbl.report import claims
from nbl.report.claims import (
    AGREEMENT,
    DISAGREEMENT,
    INCONCLUSIVE,
    Verdict,
    at_most,
    best,
    better,
    close,
    every,
    faster,
)

N, TRIALS = 10, 4000


def pairs(ratio, spread=0.2, trials=TRIALS, seed=0):
    """Regrets of two algorithms with E[a] = ratio E[b]; pairs share some luck, as replicas do.  (trials, n)"""
    rng = np.random.default_rng(seed)
    luck = rng.normal(size=(trials, N))
    a = 100 * ratio * (1 + spread * rng.normal(size=(trials, N)) + 0.2 * luck)
    b = 100 * (1 + spread * rng.normal(size=(trials, N)) + 0.2 * luck)
    return zip(a, b, strict=True)


def rates(test, ratio, **options):
    found = [test(a, b).outcome for a, b in pairs(ratio, **options)]
    return {outcome: found.count(outcome) / len(found) for outcome in (AGREEMENT, DISAGREEMENT, INCONCLUSIVE)}


@pytest.mark.parametrize(
    ("test", "border"),
    [
        (better, 1.0),
        (lambda a, b: at_most(a, b, 1.5), 1.5),
        (lambda a, b: at_most(a, b, 0.5), 0.5),
        (lambda a, b: close(a, b, 0.5), 1.5),
        (lambda a, b: close(a, b, 0.5), 0.5),
    ],
)
def test_at_the_border_of_a_claim_one_agreement_in_twenty_is_false(test, border):
    """The size of a test: at the border the claim is false, and 5% of the verdicts may say otherwise."""
    assert rates(test, border)[AGREEMENT] == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize(("test", "border"), [(better, 1.0), (lambda a, b: at_most(a, b, 1.5), 1.5)])
def test_at_the_border_one_disagreement_in_twenty_is_false(test, border):
    assert rates(test, border)[DISAGREEMENT] == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize("within", [0.001, 0.1, 0.5])
@pytest.mark.parametrize("end", [-1, 1])
def test_close_seldom_disagrees_where_the_claim_holds(within, end):
    """At the very end of the margin, and with a margin so thin that both ends count."""
    assert rates(lambda a, b: close(a, b, within), 1 + end * within)[DISAGREEMENT] < 0.065


@pytest.mark.parametrize(
    ("test", "ratio", "outcome"),
    [
        (better, 0.6, AGREEMENT),
        (better, 1.6, DISAGREEMENT),
        (lambda a, b: close(a, b, 0.4), 1.0, AGREEMENT),
        (lambda a, b: close(a, b, 0.2), 1.9, DISAGREEMENT),
        (lambda a, b: close(a, b, 0.2), 0.3, DISAGREEMENT),
        (lambda a, b: at_most(a, b, 3.34), 1.5, AGREEMENT),
        (lambda a, b: at_most(a, b, 1.25), 2.2, DISAGREEMENT),
    ],
)
def test_large_differences_are_seen_with_ten_replicas(test, ratio, outcome):
    """The power of a test."""
    assert rates(test, ratio, trials=500)[outcome] > 0.9


def test_skewed_regret_keeps_the_size_below_a_tenth():
    """A stuck replica has a large regret: lognormal values, where the t-test is not exact."""
    rng = np.random.default_rng(1)
    a, b = rng.lognormal(4, 0.8, (2, TRIALS, N))
    assert np.mean([better(x, y).outcome == AGREEMENT for x, y in zip(a, b, strict=True)]) < 0.1


def test_pairing_by_seed_finds_what_the_spread_hides():
    """Replicas differ by far more than algorithms do; a shared seed takes that out."""
    rng = np.random.default_rng(0)
    luck = rng.normal(100, 40, 10)
    a, b = luck + rng.normal(0, 1, 10), luck + 5 + rng.normal(0, 1, 10)
    assert better(a, b).outcome == AGREEMENT
    assert better(a, rng.permutation(b)).outcome == INCONCLUSIVE


def test_better_is_antisymmetric():
    for a, b in pairs(0.9, trials=20):
        assert better(a, b).p_for == pytest.approx(better(b, a).p_against)


@pytest.mark.parametrize("values", [[3.0], [3.0, float("nan"), 4.0]])
def test_one_replica_or_a_missing_number_tells_nothing(values):
    for test in (better, lambda a, b: close(a, b, 0.5), faster):
        assert test(values, [2 * v for v in values]).outcome == INCONCLUSIVE


def test_replicas_without_spread_are_judged_by_their_value():
    assert better([1.0] * 3, [2.0] * 3).outcome == AGREEMENT
    assert better([2.0] * 3, [2.0] * 3).outcome == INCONCLUSIVE
    assert close([2.0] * 3, [2.0] * 3, 0.1).outcome == AGREEMENT
    assert close([2.0] * 3, [1.0] * 3, 0.1).outcome == DISAGREEMENT


def test_best_beats_each_and_one_better_rival_is_enough_against_it():
    rng = np.random.default_rng(0)
    values = {name: mean + rng.normal(0, 3, 10) for name, mean in {"a": 10, "b": 30, "c": 50, "d": 11}.items()}
    assert best("a", values, ["b", "c"]).outcome == AGREEMENT
    assert best("c", values).outcome == DISAGREEMENT
    assert best("a", values).outcome == INCONCLUSIVE  # d is about as good
    assert "b:" in best("a", values, ["b", "c"]).detail


def test_many_rivals_do_not_make_a_false_disagreement_likely():
    """Ten equals: without a correction one of them would look better in a third of all cases."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(1500):
        values = {str(i): v for i, v in enumerate(rng.normal(100, 20, (10, N)))}
        found.append(best("0", values).outcome)
    assert found.count(DISAGREEMENT) / len(found) < 0.065
    assert found.count(AGREEMENT) / len(found) < 0.01


def test_faster_compares_ratios_of_blocks():
    """A block that both found slow (a busy machine) does not hide that one takes half the time."""
    rng = np.random.default_rng(0)
    busy = rng.lognormal(0, 1, 20)
    b = busy * rng.lognormal(0, 0.05, 20)
    a = 0.5 * busy * rng.lognormal(0, 0.05, 20)
    assert faster(a, b).outcome == AGREEMENT
    assert faster(a, b, 0.4).outcome == DISAGREEMENT
    assert "0.5" in faster(a, b).detail


def test_faster_keeps_its_size():
    rng = np.random.default_rng(0)
    a, b = rng.lognormal(0, 0.3, (2, TRIALS, 20))
    outcomes = [faster(x, y).outcome for x, y in zip(a, b, strict=True)]
    for outcome in (AGREEMENT, DISAGREEMENT):
        assert outcomes.count(outcome) / TRIALS == pytest.approx(0.05, abs=0.015)


def test_every_takes_the_weakest_for_and_corrects_the_strongest_against():
    both = every({"x": Verdict(0.01, 0.9, "x"), "y": Verdict(0.04, 0.02, "y")})
    assert (both.p_for, both.p_against) == (0.04, 0.04)
    assert every({}).outcome == INCONCLUSIVE


def test_a_function_is_judged_without_chance():
    x = np.linspace(0, 4, 401)
    assert claims.lowest(x, (x - 2) ** 2, at=2.0).outcome == AGREEMENT
    assert claims.lowest(x, (x - 2) ** 2, at=3.0).outcome == DISAGREEMENT
    assert claims.slope(1 + x, 3 * (1 + x) ** -0.5, at=-0.5).outcome == AGREEMENT
    assert claims.slope(1 + x, 3 * (1 + x) ** -0.7, at=-0.5).outcome == DISAGREEMENT
    assert claims.slope(1 + x, 3 * (1 + x) ** -0.7, at=-0.5, bound=True).outcome == AGREEMENT
    assert claims.slope(1 + x, 3 * (1 + x) ** -0.3, at=-0.5, bound=True).outcome == DISAGREEMENT
    assert claims.sensitive([1 + x, 1.1 + x]).outcome == AGREEMENT
    assert claims.sensitive([1 + 0 * x, 3 + 0 * x]).outcome == DISAGREEMENT


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="pairs are needed"):
        better([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="within"):
        close([1.0, 2.0], [1.0, 2.0], 0)
