"""Pictures of many lines: every one is drawn, and none pushes the curves out of the picture."""

from __future__ import annotations

import struct
import warnings

import numpy as np
import pytest

from nbl.report import figures


def size(picture):
    assert picture.startswith(b"\x89PNG")
    return struct.unpack(">II", picture[16:24])


def drawn(kind, count):
    rng = np.random.default_rng(0)
    labels = [f"an algorithm with setting={i}" for i in range(count)]
    curves = {label: rng.uniform(size=(3, 20)).cumsum(1) for label in labels}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib's word on axes without room
        if kind == "sweep":
            return size(figures.sweep(curves, list(range(count)), "rounds", "title"))
        if kind == "times":
            return size(figures.times({label: (1.0, 2.0) for label in labels}, "title"))
        if kind == "cost":
            return size(figures.cost({label: (1.0, curve[:, -1]) for label, curve in curves.items()}, "title"))
        return size(figures.regret(curves, "title"))


@pytest.mark.parametrize("kind", ["regret", "sweep", "times", "cost"])
def test_a_picture_grows_with_its_legend(kind):
    few, many = drawn(kind, 4), drawn(kind, 60)
    assert many[0] > few[0] or many[1] > few[1]
    assert drawn(kind, 8) == few
