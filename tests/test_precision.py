"""`trainer.precision`: networks in the precision asked for, confidence matrices in theirs."""

import pytest
import torch

import nbl
from nbl.algorithms import NeuralES, NeuralTS, NeuralUCB
from nbl.cli import main
from nbl.envs import Quadratic, ZhouH1
from nbl.gradient import Gradient

R, T = 6, 80
NET = {"net": {"width": 16}, "fit": {"steps": 5}}


def ucb(**options):
    return NeuralUCB(5, replicas=R, nu=0.3, **NET, **options)


@pytest.fixture(scope="module")
def regrets():
    """Of NeuralUCB and of Neural-ES, by precision.    (R,) each"""
    found = {}
    for precision in ("32-true", "64-true", "bf16-mixed"):
        ensemble = NeuralES(6, arms=8, fixed_arms=True, members=4, replicas=R, **NET)
        runs = (ucb(), ZhouH1(4, 5, replicas=R)), (ensemble, Quadratic(8, 6, replicas=R))
        found[precision] = [nbl.fit(*run, T, precision=precision).regret.sum(1) for run in runs]
    return found


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_regret_is_within_the_seeds_spread_of_single_precision(precision, regrets):
    """Another precision is another rounding, not another algorithm: paired by seed, the mean differs by less than the
    standard deviation over seeds.
    """
    for single, other in zip(regrets["32-true"], regrets[precision], strict=True):
        assert (other - single).mean().abs() < single.std()
    if precision == "bf16-mixed":
        assert any(not torch.equal(a, b) for a, b in zip(regrets["32-true"], regrets[precision], strict=True))


@pytest.mark.parametrize(("precision", "weights"), [("64-true", 64), ("32-true", 32), ("bf16-mixed", 32)])
@pytest.mark.parametrize("design", ["dual", "full", "diagonal", "auto"])
def test_confidence_matrices_keep_their_own_precision(precision, weights, design):
    """Products may be coarse; weights are what the Trainer says, and what is summed over rounds is float64."""
    module = ucb(design=design)
    nbl.fit(module, ZhouH1(4, 5, replicas=R), 12, precision=precision)
    assert module.net.theta.dtype == {32: torch.float32, 64: torch.float64}[weights]
    assert {buffer.dtype for buffer in module.design.buffers()} == {torch.float64}


@pytest.mark.parametrize(("dtype", "promise"), [(torch.float64, 1e-6), (torch.bfloat16, 2.0**-8)])
def test_widths_agree_to_the_precision_promised(dtype, promise):
    """The same weights, the same rounds in U, gradients in another precision: most widths agree to its rounding.

    A width is a norm, so none is off by more than |g - g'| / sqrt(lam), however ill-conditioned U is; that is more
    where rounding moves a neuron across its kink.
    """
    module, env = ucb(design="dual"), ZhouH1(4, 5, replicas=R)
    nbl.fit(module, env, 60)
    contexts = torch.cat([env.contexts(t) for t in range(61, 71)], 1).float()
    single, g = module.act(contexts).widths, module.features(contexts).double().dense()
    if dtype is torch.float64:
        module, contexts = module.double(), contexts.double()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        other, coarse = module.act(contexts).widths, module.features(contexts).double().dense()
    off = (other - single).abs()
    assert other.dtype != torch.bfloat16 and off.max() > 0
    assert (off / single).median() < promise
    assert (off <= (g - coarse).norm(dim=-1) / module.lam**0.5 + 1e-7).all()


def test_products_are_in_the_chosen_precision():
    """Under autocast the network's output is bfloat16; the confidence matrix is asked outside of it."""
    module, seen = ucb(), []
    module.design.squared = lambda g: seen.append((g, torch.is_autocast_enabled("cpu"))) or torch.ones(R, g.points)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module.net(torch.randn(R, 3, 5)).dtype == torch.bfloat16
        module.act(torch.randn(R, 4, 5))
    ((gradient, autocast),) = seen
    assert isinstance(gradient, Gradient) and gradient.layers[0][0].dtype == torch.float64 and not autocast


def test_half_precision_products_learn():
    """16-mixed needs a GPU under the Trainer; the same products on the CPU: Thompson sampling beats chance."""
    module, env = NeuralTS(5, replicas=R, nu=0.1, **NET), ZhouH1(4, 5, replicas=R)
    total, chance = 0.0, 0.0
    with torch.autocast("cpu", dtype=torch.float16):
        for t in range(1, T + 1):
            contexts = env.contexts(t)
            decision = module.act(contexts)
            feedback = env.pull(decision.arms)
            module.observe(contexts, decision, feedback)
            module.learn()
            total += feedback.regret.mean().item()
            chance += (env._means.amax(-1) - env._means.mean(-1)).mean().item()
    assert module.net.theta.isfinite().all() and total < 0.9 * chance


def test_half_precision_on_the_cpu_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["recipe=neural_ucb", "trainer.precision=16-mixed", "horizon=5", "logger=none"]) == 2
    assert "bf16-mixed" in capsys.readouterr().err and not list(tmp_path.iterdir())
