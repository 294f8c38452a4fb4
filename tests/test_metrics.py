"""Metrics per replica: totals, intervals, and joining ranks."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from scipy import stats

from nbl.metrics import CumulativeRegret, CumulativeReward, MeanReward, OptimalArmRate, SimpleRegret, summarise
from nbl.types import NblError

R, T = 3, 40
KINDS = [CumulativeRegret, CumulativeReward, SimpleRegret, MeanReward, OptimalArmRate]
EXPECTED = {
    CumulativeRegret: lambda x: x.sum(1),
    CumulativeReward: lambda x: x.sum(1),
    SimpleRegret: lambda x: x[:, -1],
    MeanReward: lambda x: x.mean(1),
    OptimalArmRate: lambda x: x.mean(1),
}


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


@pytest.fixture
def values(kind):
    x = torch.rand(R, T, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x > 0.5 if kind is OptimalArmRate else x


def test_rounds_one_by_one_and_in_blocks_agree_with_the_definition(kind, values):
    """However the rounds arrive, the metric is a function of all of them."""
    single, blocks = kind(R), kind(R)
    for t in range(T):
        single.update(values[:, t])
    for block in values.split([1, 25, 14], dim=1):
        blocks.update(block)
    for metric in (single, blocks):
        torch.testing.assert_close(metric.per_replica(), EXPECTED[kind](values.double()))
        assert metric.compute() == pytest.approx(summarise(EXPECTED[kind](values.double())))


def test_forward_updates_like_update(kind, values):
    """torchmetrics' `metric(x)` returns the value of this round alone and accumulates the same."""
    metric = kind(R)
    for t in range(3):
        now = metric(values[:, t])
        assert now == pytest.approx(summarise(values[:, t].double()))
    torch.testing.assert_close(metric.per_replica(), EXPECTED[kind](values[:, :3].double()))


def test_float32_rounds_are_summed_in_float64():
    """Small regrets are not lost beside a large sum: in float32, 1e8 + 0.5 is 1e8."""
    metric = CumulativeRegret(1)
    metric.update(torch.full((1,), 1e8, dtype=torch.float32))
    for _ in range(100):
        metric.update(torch.full((1,), 0.5))
    assert metric.per_replica().dtype == torch.float64
    assert metric.per_replica().item() == 1e8 + 50


def test_the_answer_does_not_alias_what_was_given(kind, values):
    """Writing to a round after it was taken in changes nothing."""
    metric, x = kind(R), values[:, :1].clone()
    metric.update(x)
    before = metric.per_replica().clone()
    x.zero_()
    assert torch.equal(metric.per_replica(), before)


def test_state_survives_save_and_load(kind, values, tmp_path):
    """A resumed metric goes on where it was, through a file that the safe loader takes, without a warning."""
    whole, first, second = kind(R), kind(R), kind(R)
    whole.update(values)
    first.update(values[:, :25])
    torch.save(first.state_dict(), tmp_path / "metric.pt")
    second.update(values)
    second.compute()  # a cached answer must not outlive the load
    second.load_state_dict(torch.load(tmp_path / "metric.pt", weights_only=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert second.compute() == pytest.approx(first.compute())
    second.update(values[:, 25:])
    torch.testing.assert_close(second.per_replica(), whole.per_replica())


def test_reset_forgets(kind, values):
    """After `reset` the metric is as new."""
    metric = kind(R)
    metric.update(values)
    metric.reset()
    metric.update(values[:, :2])
    torch.testing.assert_close(metric.per_replica(), EXPECTED[kind](values[:, :2].double()))


def test_before_the_first_round_totals_are_zero_and_averages_unknown():
    """Nothing was earned, and there is no average of nothing."""
    assert torch.equal(CumulativeRegret(R).per_replica(), torch.zeros(R, dtype=torch.float64))
    assert SimpleRegret(R).per_replica().isnan().all() and MeanReward(R).per_replica().isnan().all()


@pytest.mark.parametrize("shape", [(R + 1,), (), (R, 2, 2), (R, 0), (2, R + 5)])
def test_wrong_shapes_are_named_and_change_nothing(kind, values, shape):
    """The error says which shape came and which would do."""
    metric = kind(R)
    metric.update(values)
    before = metric.per_replica()
    with pytest.raises(NblError, match=rf"need \({R},\)"):
        metric.update(torch.zeros(shape))
    assert torch.equal(metric.per_replica(), before)


def test_zero_replicas_are_refused(kind):
    with pytest.raises(NblError, match="replicas=0"):
        kind(0)


def test_summary_by_hand():
    """1, 2, 3: mean 2, sd 1; t(2) at 0.975 is 4.3027, so the half width is 4.3027 / sqrt(3) = 2.4841."""
    out = summarise(torch.tensor([1.0, 2.0, 3.0]))
    assert out == pytest.approx({"mean": 2.0, "sd": 1.0, "ci95_low": 2 - 2.4841, "ci95_high": 2 + 2.4841}, abs=1e-4)


@pytest.mark.parametrize("n", [2, 5, 50])
def test_interval_is_students(n):
    """Against scipy's own interval."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    low, high = stats.t.interval(0.95, n - 1, loc=x.mean().item(), scale=stats.sem(x.numpy()))
    out = summarise(x)
    assert (out["ci95_low"], out["ci95_high"]) == pytest.approx((low, high))


def test_one_replica_has_a_mean_and_no_spread():
    """Zero would claim certainty."""
    out = summarise(torch.tensor([3.0]))
    assert out["mean"] == 3.0 and all(math.isnan(out[key]) for key in ("sd", "ci95_low", "ci95_high"))


@pytest.mark.parametrize("shape", [(0,), (2, 2), ()])
def test_summary_refuses_what_is_not_one_number_a_replica(shape):
    with pytest.raises(NblError, match="shape"):
        summarise(torch.zeros(shape))


def rank_main(rank: int, folder: str) -> None:
    """Rank 0 has replicas 0 and 1, rank 1 has replica 2."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    x = torch.arange(R * T, dtype=torch.float64).view(R, T).sin()
    own = x[:2] if rank == 0 else x[2:]
    out = {}
    for kind in KINDS:
        metric = kind(len(own))
        for t in range(3):  # joined after every round: joining must leave the rank's own state alone
            metric.update(own[:, t])
            joined = metric.compute()
        out[kind.__name__] = {"joined": joined, "own": metric.per_replica()}
    torch.save(out, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


def test_ranks_are_joined_replica_by_replica(tmp_path):
    """Two processes with two and one replicas report what one process with three would, and keep their own."""
    mp.spawn(rank_main, args=(str(tmp_path),), nprocs=2)
    x = torch.arange(R * T, dtype=torch.float64).view(R, T).sin()[:, :3]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    for kind in KINDS:
        everything = EXPECTED[kind](x)
        for got in (first, second):
            assert got[kind.__name__]["joined"] == pytest.approx(summarise(everything))
        own = torch.cat([first[kind.__name__]["own"], second[kind.__name__]["own"]])
        torch.testing.assert_close(own, everything)
