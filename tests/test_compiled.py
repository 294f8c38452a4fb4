"""`fit.compile`: the same training as one kernel, whatever t; and without it where nothing can be compiled."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from nbl import compiled, inner
from nbl.algorithms import NeuralUCB
from nbl.history import Data
from nbl.networks import MLP, ModuleNetwork, Pairs
from nbl.rng import Streams
from nbl.types import NblError

D, ROOT = 4, Path(__file__).parents[1]


def trained(compile, sizes=(3, 5, 9), make=None, wrap=lambda net: net, **options):
    """Two replicas trained on ever more data: weights, the optimiser's state and losses."""
    net = make() if make else MLP(D, 2, width=6)
    net.initialise(Streams(range(2), "test"), 0)
    fit = inner.build({"steps": 3, "compile": compile, **options}, net, 1.0)
    twice = 2 if wrap is Pairs else 1
    for n in sizes:
        g = torch.Generator().manual_seed(n)
        x, y = torch.randn(2, n, twice * D, generator=g), torch.randn(2, 1, n, generator=g)
        if isinstance(net, MLP) and net.blocks:
            x[..., -1] = torch.arange(n) % net.blocks
        fit(wrap(net), Data(x, y, torch.ones(2, n), torch.zeros(2, 1)), n)
    return fit, net.theta.detach().clone(), fit.moments, fit.last


def test_without_a_compiler_training_goes_on_and_it_is_said_once(monkeypatch):
    """The first attempt fails, whether at once or in the middle: the numbers are those of a run that never tried."""
    expected = trained(False)[1:]

    def none(function):
        raise RuntimeError("no C++ compiler was found\nand a long story")

    def half_way(function):
        def step(*given):
            given[2].add_(1.0)  # theta
            raise RuntimeError("no C++ compiler was found")

        return step

    for failing in (none, half_way):
        monkeypatch.setattr(compiled, "compiled", failing)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fit, *found = trained(True)
        (said,) = (str(w.message) for w in said)
        assert "no C++ compiler was found" in said and "\n" not in said and not fit.compiles
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_error_that_is_not_the_compilers_is_raised(monkeypatch):
    class Odd:
        def derivative(self, output, target):
            raise ZeroDivisionError("in the loss")

    monkeypatch.setattr(compiled, "compiled", lambda function: function)
    net = MLP(D, 2, width=6)
    fit = inner.build({"compile": True}, net, 1.0, Odd())
    with pytest.raises(ZeroDivisionError, match="in the loss"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(net, Data(torch.ones(2, 3, D), torch.ones(2, 1, 3), torch.ones(2, 3), torch.zeros(2, 1)), 3)


def test_growing_t_needs_no_new_kernel(monkeypatch):
    """The real tracer, with a back end that only counts: one graph for all t above 1, one for t = 1."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    made = torch.compile(inner._alone, fullgraph=True, dynamic=True, backend=count)
    monkeypatch.setattr(compiled, "compiled", lambda function: made)
    sizes = (1, 2, 3, 4, 7, 8, 9, 30, 100)
    fit, *found = trained(True, sizes)
    assert len(graphs) == 2 and fit.compiles
    trained(True, sizes)  # another policy of the same shape: nothing new
    assert len(graphs) == 2
    for a, b in zip(found, trained(False, sizes)[1:], strict=True):
        torch.testing.assert_close(a, b)


def test_checkpoints_are_the_same_with_and_without():
    """Same state, and what was saved with it loads without it."""
    one, other = (NeuralUCB(D, replicas=2, net={"width": 6}, fit={"compile": flag}) for flag in (True, False))
    assert one.state_dict().keys() == other.state_dict().keys()
    other.load_state_dict(one.state_dict())


def test_what_is_not_true_or_false_is_refused():
    with pytest.raises(NblError, match=r"fit\.compile='yes'"):
        inner.build({"compile": "yes"}, MLP(D), 1.0)


CASES = {
    "standard": {},
    "centred": {"make": lambda: MLP(D, 2, kind="zhou", width=6), "towards": "start", "optimizer": "gd", "lr": 1e-3},
    "a part": {"penalty": "last", "optimizer": "momentum", "start": "cold"},
    "pairs": {"make": lambda: MLP(D, 2, kind="feature", width=6, depth=3), "wrap": Pairs},
    "blocks": {"make": lambda: MLP(3 * (D - 1), 2, width=6, blocks=3)},
    "module": {
        "make": lambda: ModuleNetwork(lambda: nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 1)), 2),
    },
}


@pytest.mark.slow  # python -m pytest -m slow tests/test_compiled.py: 10 to 20 s a case, most of it in the C++ compiler
@pytest.mark.parametrize("case", CASES)
def test_compiled_training_is_the_same_training(case):
    """With the real compiler, to rounding."""
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # it did compile
        fit, *found = trained(True, **CASES[case])
    assert fit.compiles
    for a, b in zip(found, trained(False, **CASES[case])[1:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_machine_without_a_compiler(tmp_path):
    """A real run where CXX is nowhere: one line, exit code 0, the results of a run without the option."""
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), "recipe=neural_ucb", "horizon=8", "replicas=2"]
    command += ["logger=none", "callbacks.progress=null", "algorithm.net.width=6"]
    said = {"capture_output": True, "text": True}
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'callbacks'}", "CXX": "no-such-compiler"}
    environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "cache")
    for out, more in (("with", ["algorithm.fit.compile=true"]), ("without", [])):
        done = subprocess.run(
            [*command, f"out={out}", *more], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("fit.compile=true has no effect") == len(more), done.stderr
    assert (tmp_path / "with/rounds.parquet").read_bytes() == (tmp_path / "without/rounds.parquet").read_bytes()
