"""The benchmark's own workings; its numbers are not tested here, because machines are noisy."""

import csv
import math
import time

import pytest

from nbl.benchmark import cli, growth
from nbl.benchmark.measure import Row, in_turn


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_the_time_of_a_call_is_found_whatever_its_length():
    """A thousandfold difference between two jobs that take turns."""
    found = in_turn({"short": lambda: burn(2e-5), "long": lambda: burn(2e-2)}, repeats=3, seconds=0.02)
    assert 1e-5 < found["short"] < 1e-3
    assert 1.9e-2 < found["long"] < 5e-2


def test_a_row_that_stands_alone_never_fails():
    assert not Row("what", "at", 1.0).failed
    assert Row("what", "at", 1.0, "other", ratio=0.5, floor=0.6).failed
    assert not Row("what", "at", 1.0, "other", ratio=0.7, target=0.9, floor=0.6).failed


def test_a_late_round_is_compared_with_an_early_one():
    rows = list(growth.fixed_arms(late=120, early=60))
    assert [row.case for row in rows] == ["t=60, R=1", "t=120, R=1", "t=60, R=10", "t=120, R=10"]
    assert all(row.seconds > 0 and math.isfinite(row.seconds) for row in rows)
    assert rows[1].ratio == pytest.approx(rows[0].seconds / rows[1].seconds)


@pytest.fixture
def one_section(monkeypatch):
    rows = [Row("good", "t=1", 1e-3), Row("bad", "t=2", 1e-3, "good", ratio=0.5, target=2.0, floor=1.0)]
    monkeypatch.setattr(cli, "SECTIONS", {"only_this": lambda: rows})


def test_the_table_is_shown_and_saved(one_section, tmp_path, capsys):
    assert cli.main([f"out={tmp_path}"]) == 0
    shown = capsys.readouterr()
    assert "good" in shown.out and "Below its floor of 1.00: bad" in shown.err
    with open(tmp_path / "benchmark.csv") as file:
        saved = list(csv.DictReader(file))
    assert [row["section"] for row in saved] == ["good", "bad"] and float(saved[1]["ratio"]) == 0.5


def test_check_fails_on_a_ratio_below_its_floor(one_section, tmp_path):
    assert cli.main(["--check", f"out={tmp_path}"]) == 1


@pytest.mark.parametrize("argument", ["nonsense", "only=nothing", "--fast", "size=3"])
def test_what_it_does_not_know_it_names(argument, one_section, capsys):
    assert cli.main([argument]) == 2
    assert argument.split("=")[-1].strip("-") in capsys.readouterr().err or "size" in argument


def test_a_ratio_below_its_floor_is_measured_once_more(monkeypatch, tmp_path):
    """Someone else may have been at work: only a ratio that falls twice fails."""
    ratios = iter([0.5, 1.5])
    monkeypatch.setattr(cli, "SECTIONS", {"one": lambda: [Row("what", "at", 1.0, "other", next(ratios), floor=1.0)]})
    assert cli.main(["--check", f"out={tmp_path}"]) == 0
