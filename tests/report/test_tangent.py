"""Panels without runs, regret against time, and what the pictures of suite=ntk are made of."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from nbl import reproduce
from nbl.report import tangent
from nbl.types import NblError

PAGE = """
# Curves at given points, and a cloud.
title: Small
scales:
  smoke: {horizon: 6, replicas: 2, widths: [8, 32, 128], draws: 60}
panels:
  widths:
    title: A curve at given points
    draw: function
    function:
      _target_: nbl.report.tangent.kernel_error
      fixed: {draws: $draws}
      x: {width: $widths}
      curves: {power: [1]}
      log: true
    claims: [{slope: [1], at: -0.5, within: 0.15}, {slope: 1, at: -1.0}]
  circle:
    title: Predictions
    draw: function
    function: {_target_: nbl.report.tangent.along, x: {angle: [-3.0, 3.0]}, curves: {model: [kernel, 16]}, whole: true}
  runs: {title: Linear, env: linear, runs: {A: recipe=lin_ucb, B: recipe=lin_ts}}
  time: {title: Regret against time, draw: cost, of: runs}
"""


def go(*arguments):
    Path("page.yaml").write_text(PAGE)
    return reproduce.main(["suite=page.yaml", "scale=smoke", "out=o", "jobs=1", *arguments])


def test_functions_need_no_runs_and_slopes_are_judged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert go("only=widths,circle") == 0
    verdicts = [row["verdict"] for row in csv.DictReader(Path("o/claims.csv").read_text().splitlines())]
    assert verdicts == ["agreement", "disagreement"]
    assert {f.name for f in Path("o/figures").iterdir()} == {"widths.png", "circle.png"}
    assert "no runs, only functions" in Path("o/report.md").read_text()


def test_regret_against_time_is_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert go("only=time") == 0
    assert Path("o/figures/time.png").read_bytes().startswith(b"\x89PNG")


def test_a_value_that_the_scale_lacks_is_named(tmp_path, monkeypatch):
    from nbl import suite

    monkeypatch.chdir(tmp_path)
    Path("page.yaml").write_text(PAGE.replace("draws: $draws", "draws: $many"))
    with pytest.raises(NblError, match="many"):
        suite.plan("page.yaml", "smoke", Path("o"))


def test_wider_networks_are_closer_to_the_kernel_and_to_its_regression():
    """Lemma 1 and Theorem 1; the network of a width is the same whenever it is asked for."""
    assert tangent.kernel_error(256, 2) < tangent.kernel_error(16, 2)
    wide = tangent.ridge_error(512, 1, draws=4, steps=400)
    assert wide < tangent.ridge_error(16, 1, draws=4, steps=400) and wide < 0.1
    angle = np.linspace(-math.pi, math.pi, 9)
    kernel, net = tangent.along(angle, "kernel"), tangent.along(angle, 512)
    assert np.abs(kernel - net).max() < 0.5 * np.abs(kernel).max()
    assert np.array_equal(net, tangent.along(angle, 512))
