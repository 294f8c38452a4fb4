"""Every command and every snippet of the README runs."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from nbl import cli, reproduce
from nbl.report.command import main as report

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.S) for line in block.splitlines() if line]
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.S)
SMALL = ["horizon=12", "replicas=2", "logger=csv", "algorithm.fit.steps=2"]


def shortened(arguments):
    """As typed, with a short horizon, small networks' training and no W&B."""
    given = {a.split("=")[0] for a in arguments}
    if "resume" in given or "--help" in given:
        return arguments
    small = [s for s in SMALL if "fit" not in s or any("recipe=neural" in a and "," not in a for a in arguments)]
    return [a for a in arguments if a.split("=")[0] not in ("horizon", "replicas", "logger")] + small


def test_the_readme_has_commands():
    assert len(COMMANDS) >= 8 and len(SNIPPETS) >= 3 and "make train" in COMMANDS and "make test" in COMMANDS


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make")])
def test_make_targets_exist(command):
    """Named as typed; what they run is covered by the other tests and by CI itself."""
    done = subprocess.run([*shlex.split(command), "-n"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_training_commands_run_in_order(tmp_path, monkeypatch):
    """In one folder, one after the other: the last one resumes what an earlier one left."""
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(c) for c in COMMANDS if c.startswith("python scripts/train.py")]
    assert len(commands) >= 6
    for command in commands:
        assert cli.main(shortened(command[2:])) == 0, command
    assert (tmp_path / "results/es/regret.png").is_file()
    for command in (shlex.split(c) for c in COMMANDS if c.startswith("python scripts/report.py")):
        assert report(command[2:]) == 0 and (tmp_path / "report/report.html").is_file()


@pytest.mark.parametrize("command", [c for c in COMMANDS if "python scripts/reproduce.py" in c])
def test_suites_run_as_typed(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, _, options = command.partition("python scripts/reproduce.py")
    for name, _, value in (word.partition("=") for word in shlex.split(before)):
        monkeypatch.setenv(name, value)
    assert reproduce.main(shlex.split(options)) == 0
    assert "--dry-run" in command or list(tmp_path.glob("runs/*/report.md"))


def test_no_command_is_left_out():
    known = (
        "make",
        "python scripts/train.py",
        "python scripts/reproduce.py",
        "python scripts/report.py",
        "NBL_DATA_DIR=",
    )
    assert [c for c in COMMANDS if not c.startswith(known)] == []


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippets_run(snippet):
    exec(compile(snippet, "README.md", "exec"), {"__name__": "readme"})


def test_the_picture_is_there():
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / picture).stat().st_size > 10_000
