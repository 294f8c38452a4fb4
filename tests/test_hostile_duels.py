"""Duels, against users and each other: what broke them once."""

import numpy as np
import pytest
import torch

import nbl
from nbl.algorithms import GLMES, NVLDB, VACDB, NeuralLogUCB2
from nbl.envs import ClassDuel, Classification
from nbl_callbacks import VarianceWeighting

R = 2
SMALL = {"net": {"width": 8, "phi": 8}, "fit": {"steps": 3}}


def table():
    draw = np.random.default_rng(0)
    return {**{f"x{i}": draw.normal(size=40) for i in range(4)}, "label": draw.integers(0, 3, 40)}


@pytest.mark.parametrize("cls", [NVLDB, VACDB, GLMES, NeuralLogUCB2])
def test_variances_of_disjoint_contexts_are_the_same_in_blocks(cls):
    """env=duel_statlog hands out (x, k), and eps is 1 / sqrt(d) of the whole context either way."""
    found = []
    for blocks in (False, True):
        environment = (ClassDuel if cls.duel else Classification)(data=table(), blocks=blocks, replicas=R)
        options = {NVLDB: SMALL, NeuralLogUCB2: {"net": {"width": 8}}}.get(cls, {})
        module = cls(environment.dim, arms=3, replicas=R, blocks=environment.blocks, **options)
        weighting = VarianceWeighting(eps=None, source="model", mode="inverse" if cls.duel else "direct")
        nbl.fit(module.double(), environment, horizon=12, callbacks=[weighting])
        found.append(module.act(environment.contexts(20)).scores)
    torch.testing.assert_close(*found)
