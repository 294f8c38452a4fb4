"""scripts/report.py: what it finds, what belongs together, what it writes, and what it refuses."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nbl.report.command import main
from nbl.report.runs import find, problems, read

ROOT = Path(__file__).parents[2]


def rows(file):
    return list(csv.DictReader(Path(file).read_text().splitlines()))


def sorted_problems(*folders, **options):
    return problems([read(f) for f in find(folders)[0]], **options)


def test_it_writes_tables_in_every_form(leave, capsys):
    leave("runs/a/1", "lin_ucb", rate=0.2, seeds=range(6))
    leave("runs/b/1", "lin_ts", rate=0.6, seeds=range(6))
    leave("runs/c/1", "uniform", rate=0.61, seeds=range(6))
    assert main(["runs", "title=Mine <b>"]) == 0
    said = capsys.readouterr().out
    assert "linear, 60 rounds" in said and "report.html" in said
    table = rows("report/summary.csv")
    assert [row["algorithm"] for row in table] == ["lin_ucb", "lin_ts", "uniform"]  # the best first
    finals = read(Path("runs/a/1")).regret[:, -1]
    assert float(table[0]["mean"]) == pytest.approx(finals.mean())
    assert float(table[0]["sd"]) == pytest.approx(finals.std(ddof=1))
    assert [row["best"] for row in table] == ["True", "False", "False"] and table[0]["wins"] == "2"
    pairs = {(row["a"], row["b"]): row for row in rows("report/pairs.csv")}
    assert pairs["lin_ucb", "lin_ts"]["better"] == "lin_ucb"
    assert len(pairs) == 3 and all(row["seeds"] == "6" for row in pairs.values())
    text = Path("report/report.md").read_text()
    assert "**lin_ucb**" in text and "Holm" in text and "runs/a/1" in text
    tex = Path("report/tables.tex").read_text()
    assert r"lin\_ucb & $\mathbf{" in tex and tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 1
    page = Path("report/report.html").read_text()
    assert "Mine &lt;b&gt;" in page and "src=" not in page.split("</script>")[-2] and "nu: 1.0" in page


def test_environments_lengths_and_settings_are_kept_apart(leave):
    leave("r/a", "lin_ucb")
    leave("r/b", "lin_ts")
    leave("r/c", "lin_ucb", env="zhou_h1")
    leave("r/d", "lin_ucb", rounds=30)
    leave("r/e", "lin_ucb", noise=0.1)
    found = {p.name: [e.label for e in p.entries] for p in sorted_problems("r")}
    assert found == {
        "linear, 60 rounds (1)": ["lin_ucb", "lin_ts"],
        "zhou_h1, 60 rounds": ["lin_ucb"],
        "linear, 30 rounds": ["lin_ucb"],
        "linear, 60 rounds (2)": ["lin_ucb"],
    }
    cut = {p.name: [e.label for e in p.entries] for p in sorted_problems("r", at=30)}
    assert sorted(cut["linear, 30 rounds (1)"]) == ["lin_ts", "lin_ucb"]  # the longer and the shorter lin_ucb pooled


def test_tables_of_ones_own_have_the_names_of_their_files(leave):
    leave("r/a", env="table", path="data/my.csv")
    leave("r/b", env="table", path="other.parquet")
    assert {p.name for p in sorted_problems("r")} == {"table my, 60 rounds", "table other, 60 rounds"}


def test_labels_name_what_differs(leave):
    leave("r/a", "lin_ucb", nu=1.0)
    leave("r/b", "lin_ucb", nu=0.2)
    leave("r/c", "lin_ts")
    leave("r/d", "lin_ts", callbacks={"progress": None, "delay": {"rounds": 5}})
    (problem,) = sorted_problems("r")
    assert sorted(e.label for e in problem.entries) == ["lin_ts", "lin_ts rounds=5", "lin_ucb nu=0.2", "lin_ucb nu=1.0"]


def test_runs_of_one_config_are_pooled_over_their_seeds(leave):
    """And where, how and with which replicas it was run is no difference."""
    leave("r/a", seeds=range(3))
    leave("r/b", seeds=range(3, 8), threads=2, logger={"csv": None})
    leave("r/c", "lin_ts", seeds=range(8))
    (problem,) = sorted_problems("r")
    assert {e.label: e.seeds for e in problem.entries} == {"lin_ucb": tuple(range(8)), "lin_ts": tuple(range(8))}
    one = next(e for e in problem.entries if e.label == "lin_ucb")
    np.testing.assert_array_equal(one.of([4]), read(Path("r/b")).regret[[1]])


def test_unshared_seeds_are_left_out_and_named(leave, capsys):
    leave("r/a", "lin_ucb", seeds=range(0, 6))
    leave("r/b", "lin_ts", seeds=range(3, 9))
    leave("q/a", "lin_ucb", seeds=range(0, 3))
    leave("q/b", "lin_ts", seeds=range(5, 8))
    assert main(["r"]) == 0
    assert {row["seeds"] for row in rows("report/summary.csv")} == {"3"}
    assert "Shared seeds: 3 to 5" in capsys.readouterr().out
    assert main(["q"]) == 0
    assert "Fewer than two seeds" in capsys.readouterr().out
    assert rows("report/pairs.csv")[0]["better"] == "too few shared seeds"


def test_without_regret_rewards_are_compared_and_more_is_better(leave):
    leave("r/a", "lin_ucb", rate=0.2, seeds=range(6), regret=False)
    leave("r/b", "lin_ts", rate=0.7, seeds=range(6), regret=False)
    assert main(["r"]) == 0
    table = rows("report/summary.csv")
    assert table[0]["algorithm"] == "lin_ucb" and table[0]["wins"] == "1"
    assert "cumulative reward" in Path("report/report.html").read_text()


def test_one_run_with_one_seed_makes_a_page_too(leave, capsys):
    leave("r/a", seeds=[7])
    assert main(["r/a", "out=o"]) == 0
    assert "Nothing to compare with" in capsys.readouterr().err and Path("o/report.html").stat().st_size > 1e6


def test_what_a_suite_put_aside_and_what_is_unfinished_is_left_out(leave, capsys):
    leave("r/ES")
    leave("r/ES.old1", nu=3.0)
    (leave("r/half") / "summary.json").unlink()
    assert main(["r"]) == 0
    assert "half: not finished" in capsys.readouterr().err and len(rows("report/summary.csv")) == 1


def test_a_damaged_run_among_others_is_left_out_by_name(leave, capsys):
    leave("r/a")
    (leave("r/b", "lin_ts") / "summary.json").write_text("{")
    assert main(["r"]) == 0
    assert "Left out: r/b is not the folder of a whole run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "no such folder"),
        (["empty"], "holds no finished run"),
        (["r", "levle=0.1"], "level"),
        (["r", "level=much"], "need a number"),
        (["r", "level=2"], "between 0 and 1"),
        (["r", "test=f"], "wilcoxon"),
        (["r", "at=1000"], "the longest has 60"),
        (["r", "at=-1"], "whole number"),
        (["out=o"], "Which runs"),
        (["r", "--verbose"], "no option"),
        (["r", "out=r/a/config.yaml"], "is a file"),
        (["broken"], "rounds.parquet|not the folder of a whole run"),
        (["lame"], "lacks choices"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(leave, arguments, words, capsys):
    import re

    leave("r/a")
    Path("empty").mkdir()
    (leave("broken/a") / "rounds.parquet").write_text("no")
    leave("lame/a", choices=None)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert re.search(words, said) and said.startswith("Error: ") and "Traceback" not in said


def test_help_and_no_arguments(capsys):
    assert main(["--help"]) == 0 and "correction=holm" in capsys.readouterr().out
    assert main([]) == 2


def test_the_script_runs(leave):
    leave("r/a")
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "callbacks")))
    command = [sys.executable, ROOT / "scripts/report.py", "r"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0 and Path("report/report.html").is_file(), done.stderr
