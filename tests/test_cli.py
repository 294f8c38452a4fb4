"""The command line: what it makes, what it refuses, and that no recipe rots."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

from nbl import config
from nbl.cli import main

QUICK = ["horizon=10", "replicas=2", "logger=none", "callbacks.progress=null", "out=a"]
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("recipe", config.choices("recipe"))
def test_every_recipe_composes_builds_and_plays_ten_rounds(recipe):
    assert main([f"recipe={recipe}", *QUICK]) == 0
    summary = json.loads(Path("a/summary.json").read_text())
    assert summary["recipe"] == recipe and summary["horizon"] == 10 and len(summary["regret"]["per_replica"]) == 2


@pytest.mark.parametrize("algorithm", config.choices("algorithm"))
def test_every_algorithm_file_builds_and_plays(algorithm):
    kind = get_class(OmegaConf.load(config.folder() / "algorithm" / f"{algorithm}.yaml")["_target_"])
    env = ["env=quadratic"]
    if kind.duel:
        env = ["env=duel_square", "env.dim=6"]
    elif kind.bernoulli:  # a coin's likelihood refuses other rewards
        env = ["env=log_h6"]
    assert main(["recipe=uniform", f"algorithm={algorithm}", *QUICK, *env]) == 0


def open_bandit(folder, rows=90):
    """A log of the shape of Open Bandit: 9 items, 4 user features of 5 letters."""
    affinity = [f"user-item_affinity_{i}" for i in range(9)]
    users = [f"user_feature_{i}" for i in range(4)]
    lines = [",".join(["item_id", "position", "click", "propensity_score", *users, *affinity])]
    for n in range(rows):
        letters = ["abcde"[(n * (k + 2) + n // 5) % 5] for k in range(4)]
        lines.append(
            ",".join(map(str, [n % 9, n % 3 + 1, int(n % 30 == 0), 0.1, *letters, *[n * k % 4 for k in range(9)]]))
        )
    (folder / "obd_random_all.csv").write_text("\n".join(lines) + "\n")
    items = ["item_id,item_feature_0,item_feature_1,item_feature_2"]
    items += [f"{i},{i / 10},{'abcd'[i % 4]},{'abcd'[i * i % 4]}" for i in range(9)]
    (folder / "obd_random_all_item_context.csv").write_text("\n".join(items) + "\n")


def test_a_log_has_no_regret_and_ends_when_it_ends(tmp_path, monkeypatch, capsys):
    """The run goes to the end of the log; the closing table, the picture and the summary speak of reward."""
    monkeypatch.setenv("NBL_DATA_DIR", str(tmp_path))
    open_bandit(tmp_path)
    small = [
        "horizon=200",
        "replicas=2",
        "logger=none",
        "callbacks.progress=null",
        "env.item_dim=4",
        "algorithm.fit.steps=5",
    ]
    with pytest.warns(UserWarning, match="the log has ended"):
        assert main(["recipe=neural_log_ts_1", "env=obd", *small, "out=a"]) == 0
    said = capsys.readouterr().out
    assert "reward a round" in said and "regret" not in said and "reward.png" in said
    summary = json.loads(Path("a/summary.json").read_text())
    assert summary["regret"]["mean"] is None and 5 < summary["rounds"] < 90
    assert Path("a/reward.png").stat().st_size > 5000 and not Path("a/regret.png").exists()
    assert "regret" not in Path("a/metrics.csv").read_text().splitlines()[0]


@pytest.mark.parametrize("env", config.choices("env"))
def test_every_environment_file_builds_and_plays(env, tmp_path, monkeypatch):
    """Data sets are looked for in NBL_DATA_DIR: here is a small table for each."""
    monkeypatch.setenv("NBL_DATA_DIR", str(tmp_path))
    made = config.compose(["recipe=lin_ucb", f"env={env}"]).env
    header = "x,letter,label"
    rows = [f"{i},{'abc'[i % 3]},{i % 2}" for i in range(90)]
    if env == "logged":
        header, rows = "x,action,reward,propensity", [f"{row},0.3" for row in rows]
    (tmp_path / f"{made.get('name') or env}.csv").write_text("\n".join([header, *rows]) + "\n")
    if env == "obd":
        open_bandit(tmp_path)
    more = [f"env.path={env}.csv"] if env in ("table", "logged", "preferences") else []
    more += ["env.first=x", "env.second=label"] if env == "preferences" else []
    more += ["env.item_dim=4"] if env == "obd" else []
    recipe = "maxinp" if get_class(made["_target_"]).duel else "lin_ucb"
    assert main([f"recipe={recipe}", f"env={env}", *QUICK, *more]) == 0


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_precision_is_the_trainers(precision):
    assert main(["recipe=neural_ucb", f"trainer.precision={precision}", *QUICK]) == 0
    assert Path("a/rounds.parquet").exists()


def test_a_run_leaves_its_files(capsys):
    line = "recipe=neural_es horizon=20 replicas=3 seed=5 env=quadratic logger=csv out=a algorithm.nu=0.3"
    assert main(line.split()) == 0
    assert {f.name for f in Path("a").iterdir()} == {
        *("config.yaml", "summary.json", "rounds.parquet", "metrics.csv", "regret.png", "checkpoints", "csv")
    }
    assert [f.name for f in Path().iterdir()] == ["a"]
    saved = OmegaConf.load("a/config.yaml")
    assert (saved.recipe, saved.algorithm.nu, saved.choices.env, saved.seed) == ("neural_es", 0.3, "quadratic", 5)
    printed = capsys.readouterr().out
    assert "regret, 20 rounds" in printed and "rounds/s" in printed and "a/" in printed
    assert json.loads(Path("a/summary.json").read_text())["seeds"] == [5, 6, 7]


def test_default_folders_do_not_collide():
    quick = [q for q in QUICK if not q.startswith("out=")]
    for _ in range(3):
        assert main(["recipe=uniform", *quick]) == 0
    assert len(list(Path("runs/uniform").iterdir())) == 3


def test_a_folder_with_a_run_is_not_written_over(capsys):
    assert main(["recipe=uniform", *QUICK]) == 0
    assert main(["recipe=uniform", *QUICK]) == 2
    assert "resume=a" in capsys.readouterr().err


def test_callbacks_are_put_in_and_taken_out():
    quick = [q for q in QUICK if "callbacks" not in q]
    extra = ["+callbacks.timer._target_=lightning.pytorch.callbacks.Timer", "checkpoint.every=0"]
    assert main(["recipe=uniform", *quick, *extra, "callbacks.progress=null"]) == 0
    assert not Path("a/checkpoints").exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("recipe=neural_ucbb", "neural_ucb"),
        ("recipe=neural_ucb env=zhuo_h1", "zhou_h1"),
        ("recipe=neural_ucb logger=wanb", "wandb"),
        ("recipe=neural_ucb horizn=3", "horizon"),
        ("recipe=neural_ucb algorithm.nuu=3", "algorithm.nu"),
        ("recipe=neural_ucb algorithm.net.widht=3", "algorithm.net.width"),
        ("recipe=neural_ucb +algorithm.lamm=3", "lam"),
        ("recipe=neural_ucb algorithm.lam=-1", "lam=-1"),
        ("recipe=neural_ucb env.arms=0", "arms=0"),
        ("recipe=neural_ucb horizon=0", "horizon=0"),
        ("recipe=neural_ucb horizon=abc", "horizon=abc"),
        ("recipe=neural_ucb replicas=-2", "replicas=-2"),
        ("recipe=neural_ucb seed=x", "seed=x"),
        ("recipe=neural_ucb ~horizon", "horizon"),
        ("recipe=neural_ucb checkpoint.every=-1", "checkpoint.every"),
        ("recipe=neural_ucb trainer.precision=13", "13"),
        ("recipe=neural_ucb +trainer.max_tim=3", "max_time"),
        ("recipe=neural_ucb horizon", "key=value"),
        ("recipe=neural_ucb +callbacks.x._target_=nbl_callbacks.Nope", "Nope"),
        ("recipe=neural_ucb logger.wandb.mode=sideways", "sideways"),
        ("recipe=neural_ucb resume=last", "runs/neural_ucb"),
        ("recipe=neural_ucb resume=nowhere", "nowhere"),
        ("recipe=neural_ucb seed=0,1", "multirun"),
        ("horizon=3", "neural_es"),
        ("-m recipe=neural_ucb,nope", "nope"),
        ("-m recipe=neural_ucb horizon=10,0", "horizon=0"),
    ],
)
def test_bad_input_is_one_screen_and_leaves_nothing(line, says, capsys):
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert says in captured.err and "Traceback" not in captured.err and len(captured.err.splitlines()) <= 24
    assert not list(Path().iterdir())


def test_an_error_while_playing_is_reported_and_what_was_played_is_kept(monkeypatch, capsys):
    from nbl.algorithms import Uniform
    from nbl.types import NblError

    def fail(self):
        if self.round == 7:
            raise NblError("the network diverged")

    monkeypatch.setattr(Uniform, "learn", fail)
    assert main(["recipe=uniform", *QUICK]) == 1
    assert "round 7 of 10: the network diverged" in capsys.readouterr().err
    assert Path("a/rounds.parquet").exists()


def test_help_lists_what_there_is(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for group in ("recipe", "env", "logger"):
        for name, about in config.choices(group).items():
            assert name in text and about and about in text
    assert main([]) == 2
    assert "neural_es" in capsys.readouterr().err


def test_sweep_gives_each_job_its_folder(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    quick = [q for q in QUICK if not q.startswith("out=")]
    assert main(["-m", "recipe=uniform,lin_ucb", "seed=0,10", *quick, "out=s"]) == 0
    found = {f.parent.name: json.loads(f.read_text()) for f in Path("s").glob("*/summary.json")}
    jobs = sorted((s["recipe"], s["seeds"][0]) for s in found.values())
    assert jobs == [("lin_ucb", 0), ("lin_ucb", 10), ("uniform", 0), ("uniform", 10)]
    assert "recipe=lin_ucb,seed=10" in found
    assert [f.name for f in Path().iterdir()] == ["s"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel of this tree, installed where nothing else of it is."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip"]
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    command = [*pip, "wheel", "--no-deps", *isolation, "--wheel-dir", str(wheels), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    wheel = str(next(wheels.glob("*.whl")))
    command = [*pip, "install", "--no-deps", "--no-index", "--target", str(target), wheel]
    subprocess.run(command, check=True, capture_output=True)
    return target


def test_the_wheel_has_the_recipes_and_runs_in_an_empty_folder(installed, empty):
    """`nbl-train` after `pip install`: recipes come from inside the package; wandb is not imported with logger=csv."""
    environ = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    code = (
        "import sys, nbl.cli\n"
        f"assert nbl.cli.__file__.startswith({str(installed)!r}), nbl.cli.__file__\n"
        "code = nbl.cli.main(sys.argv[1:])\n"
        "assert 'wandb' not in sys.modules\n"
        "sys.exit(code)\n"
    )
    line = ["recipe=neural_es", "horizon=20", "replicas=2", "logger=csv", "out=a"]
    done = subprocess.run([sys.executable, "-c", code, *line], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr and "Tip" not in done.stderr
    assert json.loads(Path("a/summary.json").read_text())["recipe"] == "neural_es"
    script = installed / "bin" / "nbl-train"
    command = [sys.executable, str(script), "--help"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "neural_es" in done.stdout and "nbl-train recipe=" in done.stdout


def test_recipes_are_well_formed():
    """First comment: what --help shows; then an example of a command that composes."""
    for file in sorted((config.folder() / "recipe").glob("*.yaml")):
        lines = file.read_text().splitlines()
        assert lines[0] == "# @package _global_" and lines[1].startswith("# ") and lines[1].endswith("."), file
        command = next(line for line in lines if "scripts/train.py" in line).split("scripts/train.py ")[1]
        assert command.split()[0] == f"recipe={file.stem}"
        config.compose(command.split())
