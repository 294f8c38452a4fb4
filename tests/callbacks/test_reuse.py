"""The proof of reuse: the README's example runs where there is no nbl."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CALLBACKS = Path(__file__).parents[2] / "callbacks"


def example():
    return re.search(r"```python\n(.*?)```", (CALLBACKS / "README.md").read_text(), re.DOTALL)[1]


def check(printed):
    phases, accuracy = re.search(r"phases (\d+), accuracy (\d\.\d+)", printed).groups()
    assert int(phases) == 5 and float(accuracy) > 0.85


def test_the_example_is_a_page():
    assert len([line for line in example().splitlines() if line.strip()]) <= 36


def test_the_example_runs(tmp_path):
    """Here, without nbl on the path."""
    environ = {**os.environ, "PYTHONPATH": str(CALLBACKS), "OMP_NUM_THREADS": "1"}
    code = example() + "\nimport sys\nassert 'nbl' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    check(done.stdout)


@pytest.mark.slow
def test_in_an_environment_of_its_own(tmp_path):
    """torch, then only `callbacks/`: the example runs to the end, and nothing of nbl's world can be imported."""
    python = tmp_path / "venv" / "bin" / "python"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"OMP_NUM_THREADS": "1"}

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    run(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    run(str(python), "-m", "pip", "install", "torch==2.13.0")
    run(str(python), "-m", "pip", "install", str(CALLBACKS))
    check(run(str(python), "-c", example()))
    run(
        str(python),
        "-c",
        "import importlib.util as u, sys\n"
        "found = [m for m in ('nbl', 'hydra', 'datasets', 'wandb') if u.find_spec(m)]\n"
        "sys.exit(f'importable: {found}' if found else 0)\n",
    )
