"""Levels and batches, against users and each other: what broke them once."""

import pytest
import torch

from nbl.algorithms import BatchedNeuralUCB, NeuralGCB, SupNeuralUCB
from nbl.envs import GcbH1
from nbl.types import NblError

R, D = 2, 4
SMALL = {"net": {"kind": "ntk", "width": 8}, "fit": {"steps": 3, "ridge": 1.0}, "lam": 0.1}


def play(module, environment, rounds, since=1):
    for t in range(since, since + rounds):
        x = environment.contexts(t)
        decision = module.act(x)
        module.observe(x, decision, environment.pull(decision.arms))
        module.learn()


@pytest.mark.parametrize("cls", [NeuralGCB, SupNeuralUCB])
def test_data_kept_over_a_restart_have_their_gradients_at_the_new_start(cls):
    """V is of g at W_0, and a restart draws W_0 anew."""
    module, environment = cls(D, replicas=R, levels=3, **SMALL).double(), GcbH1(3, D, replicas=R)
    play(module, environment, 15)
    sizes = module.psi.clone()
    module.restart(keep_history=True)
    g = module.features(module.history.data().inputs).dense()
    for level in range(3):
        of = (module.design.labels[:, :15] == level).double().unsqueeze(-1)
        V = 0.1 * torch.eye(g.shape[-1], dtype=torch.float64) + (g * of).mT @ g
        wide = torch.einsum("rnp,rpq,rnq->rn", g, torch.linalg.inv(V), g)
        torch.testing.assert_close(module.design.squared(module.features(module.history.data().inputs))[:, level], wide)
    assert torch.equal(module.psi, sizes)


def test_a_restart_that_keeps_data_ends_the_batch():
    module, environment = BatchedNeuralUCB(D, replicas=R, retrain={"every": 8}, **SMALL), GcbH1(3, D, replicas=R)
    play(module, environment, 12)
    assert module.design.seen.tolist() == [8, 8]
    module.restart(keep_history=True)
    assert module.design.seen.tolist() == [12, 12]


@pytest.mark.parametrize("factor", [1e300, float("inf")])
def test_batches_that_grow_beyond_numbers_are_refused(factor):
    with pytest.raises(NblError, match="factor"):
        NeuralGCB(D, levels=5, batch={"first": 5, "factor": factor}, **SMALL)
