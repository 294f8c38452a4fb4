"""Disjoint contexts as (x, k) equal the written-out ones: same weights, widths, gradients and arms."""

import pytest
import torch

import nbl
from nbl import blocks
from nbl.design import Diagonal, Dual, Full
from nbl.envs import Classification
from nbl.networks import MLP
from nbl.types import NblError

R, K, D, N = 2, 3, 4, 11
KINDS = [("standard", 2), ("standard", 3), ("zhou", 2), ("zhou", 3), ("ntk", 2)]


def points(n=N, seed=0):
    """Rows in blocks, some blocks empty for a replica.  (R, n, d + 1)"""
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(R, n, D, generator=made, dtype=torch.float64)
    k = torch.randint(0, K, (R, n, 1), generator=made)
    k[1] = k[1].clamp_max(1)
    return torch.cat([x, k.double()], -1)


def nets(kind, depth):
    """A network that reads blocks, and one that reads the zeros too: the same weights, moved away from the start."""
    made = []
    for count in (K, None):
        net = MLP(K * D, R, kind=kind, width=6, depth=depth, blocks=count).double()
        net.initialise(nbl.rng.Streams(tuple(range(R)), "test"), 0)
        net.theta += 0.1 * torch.randn(net.theta.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        made.append(net)
    return made


def test_join_and_written_are_the_disjoint_encoding():
    x = torch.randn(R, D)
    full = blocks.written(blocks.join(x, K), K)
    assert full.shape == (R, K, K * D)
    for k in range(K):
        assert torch.equal(full[:, k, k * D : (k + 1) * D], x) and full[:, k].count_nonzero() == x.count_nonzero()


@pytest.mark.parametrize(("kind", "depth"), KINDS)
def test_outputs_and_training_gradients_are_equal(kind, depth):
    """f and the pullback, for the few points of a round and for the many of training."""
    (block, full), x = nets(kind, depth), points()
    assert torch.equal(block.theta, full.theta)
    torch.testing.assert_close(block(x), full(blocks.written(x, K)))
    signal, gradients = torch.randn(R, N, dtype=torch.float64), []
    for net, inputs in ((block, x), (full, blocks.written(x, K))):
        into = torch.zeros_like(net.theta)
        out, kept = net.evaluate(net.unpack(net.theta), net.prepare(inputs, many=True))
        net.pullback(net.unpack(net.theta), kept, signal, net.unpack(into))
        gradients += [out, into]
    torch.testing.assert_close(gradients[:2], gradients[2:])


@pytest.mark.parametrize(("kind", "depth"), KINDS)
@pytest.mark.parametrize("design", [Dual, Full, Diagonal])
def test_widths_and_determinants_are_equal(kind, depth, design):
    found = []
    for net, read in zip(nets(kind, depth), (lambda x: x, lambda x: blocks.written(x, K)), strict=True):
        g = net.features(read(points()))
        made = design(R, g.size, 0.5)
        made.update(g, torch.linspace(0.1, 2, N, dtype=torch.float64).expand(R, N))
        new = net.features(read(points(5, seed=1)))
        found.append((g.size, made.width(new), made.logdet(), new.square(), new.gram(g)))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1:], found[1][1:])


def table(rows=60):
    made = torch.Generator().manual_seed(0)
    x = torch.randn(rows, D, generator=made)
    label = (x[:, 0] > 0.4).int() + (x[:, 1] > 0).int()
    return {**{str(i): x[:, i].numpy() for i in range(D)}, "label": label.numpy()}


def test_every_algorithm_plays_the_same_arms(algorithm, play):
    """Those that read blocks, and those for which they are written out."""
    found = []
    for disjoint in (True, False):
        env = Classification(data=table(), replicas=R, blocks=disjoint, seed=3)
        module = algorithm(dim=env.dim, arms=env.arms, replicas=R, seed=3, blocks=env.blocks).double()
        found.append(play(module, env, 40)[0])
    assert torch.equal(*found)


def test_a_users_own_network_gets_the_zeros(play):
    env = Classification(data=table(), replicas=R, blocks=True)
    module = nbl.algorithms.NeuralUCB(dim=env.dim, replicas=R, blocks=K, net=lambda: torch.nn.Linear(K * D, 1))
    play(module, env, 5)
    assert module.history.inputs.shape[-1] == K * D


def test_no_zeros_are_kept():
    """History, pending and the Dual's factors hold d + 1 numbers a context, and a checkpoint brings them back."""
    env = Classification(data=table(), replicas=R, blocks=True)
    module = nbl.algorithms.NeuralTS(dim=env.dim, replicas=R, blocks=K, design="dual", net={"width": 6})
    nbl.fit(module, env, horizon=20)
    assert module.history.inputs.shape[-1] == module.pending.shape[-1] - 1 == D + 1
    assert module.design.a_0.shape[-1] == D and module.design.size == 6 * K * D + 6 + 7
    again = nbl.algorithms.NeuralTS(dim=env.dim, replicas=R, blocks=K, design="dual", net={"width": 6})
    again.load_state_dict(module.state_dict())
    x = env.contexts(21)
    assert torch.equal(module.act(x).scores, again.act(x).scores)


def test_a_linear_model_keeps_a_matrix_a_block():
    assert nbl.algorithms.LinUCB(dim=K * D, blocks=K).design.inverse.shape == (1, K, D, D)


@pytest.mark.parametrize("last", [-1.0, float(K), 0.5])
def test_a_block_that_is_not_there_is_refused(last):
    module = nbl.algorithms.LinUCB(dim=K * D, blocks=K)
    contexts = blocks.join(torch.randn(1, D), K)
    contexts[0, 1, -1] = last
    with pytest.raises(NblError, match="block, 0 to 2"):
        module.act(contexts)
    with pytest.raises(NblError, match=r"need \(1, arms, 5\).*block"):
        module.act(torch.randn(1, K, K * D))


def test_module_and_environment_agree_on_blocks():
    env = Classification(data=table(), blocks=True)
    with pytest.raises(NblError, match=r"blocks=None.*has 3"):
        nbl.fit(nbl.algorithms.LinUCB(dim=env.dim), env, horizon=2)
    with pytest.raises(NblError, match="divisor"):
        nbl.algorithms.LinUCB(dim=10, blocks=3)
