"""Finished runs, read from their folders and sorted into problems: what can be compared with what."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from nbl.types import NblError

Array = NDArray[np.float64]
_ASIDE = re.compile(r"\.old\d+$")  # what a suite put aside
_SAME = ("seed", "replicas", "out", "id", "resume", "threads", "logger", "checkpoint", "log_every", "horizon", "env")
_RIDERS = ("progress", "clock", "plot")  # callbacks that only look on


@dataclass(frozen=True)
class Run:
    """One folder. Curves are (R, T): regret and reward, summed up to each round."""

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    seeds: tuple[int, ...]
    regret: Array
    reward: Array

    @property
    def played(self) -> int:
        return int(self.regret.shape[1])


@dataclass(frozen=True)
class Entry:
    """One algorithm in a problem: all runs of its config, pooled over their seeds."""

    label: str
    runs: tuple[Run, ...]
    seeds: tuple[int, ...]
    curves: Array  # (R, T), cumulative, of the problem's measure

    def of(self, seeds: Sequence[int]) -> Array:
        """The curves of these seeds.    -> (n, T)"""
        place = {seed: row for row, seed in enumerate(self.seeds)}
        return self.curves[[place[seed] for seed in seeds]]


@dataclass(frozen=True)
class Problem:
    """One environment and number of rounds, with everything that was played on it."""

    name: str
    env: dict[str, Any]
    rounds: int
    measure: str  # regret, or reward where a run has no regret
    entries: tuple[Entry, ...]
    shared: tuple[int, ...]  # seeds that every entry has
    notes: tuple[str, ...] = field(default=())

    @property
    def seeds(self) -> dict[str, tuple[int, ...]]:
        """Of each entry, as tables and curves show it: the shared ones where there are two or more of them."""
        return {e.label: self.shared if len(self.shared) > 1 else e.seeds for e in self.entries}


def find(paths: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The folders of finished runs in these folders, and a remark on each that is not finished."""
    found: dict[Path, None] = {}
    remarks = []
    for text in paths:
        path = Path(text)
        if not path.exists():
            raise NblError(
                f"{text}: there is no such folder. Runs are in runs/<recipe>/<date>_<time> unless out= said so."
            )
        path = path.parent if path.is_file() and path.name in ("summary.json", "rounds.parquet") else path
        configs = sorted(path.rglob("config.yaml")) if path.is_dir() else []
        configs = [c for c in configs if c.parent == path or not any(map(_ASIDE.search, c.relative_to(path).parts))]
        whole = [c.parent for c in configs if all((c.parent / f).is_file() for f in ("summary.json", "rounds.parquet"))]
        if not whole:
            begun = f" ({len(configs)} begun, none finished)" if configs else ""
            raise NblError(
                f"{text} holds no finished run{begun}. A run's folder has config.yaml, summary.json and "
                "rounds.parquet, as scripts/train.py and scripts/reproduce.py leave them; any folder above it will do."
            )
        remarks += [f"{c.parent}: not finished, left out." for c in configs if c.parent not in whole]
        found.update(dict.fromkeys(folder.resolve() for folder in whole))
    return list(found), list(dict.fromkeys(remarks))


def read(folder: Path) -> Run:
    """One run. What is damaged is an error that says which file."""
    import pyarrow.parquet as pq

    try:
        config: Any = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"), resolve=True)
        summary = json.loads((folder / "summary.json").read_text())
        seeds = tuple(int(seed) for seed in summary["seeds"])
        table = pq.read_table(folder / "rounds.parquet", columns=["regret", "reward"])
        regret, reward = (
            table[name].to_numpy().astype(np.float64).reshape(len(seeds), -1).cumsum(1) for name in ("regret", "reward")
        )
        if missing := [key for key in ("recipe", "choices", "env") if not config.get(key)]:
            raise ValueError(f"config.yaml lacks {', '.join(missing)}")
    except Exception as error:  # json's, yaml's, pyarrow's, numpy's
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        raise NblError(
            f"{os.path.relpath(folder)} is not the folder of a whole run ({why}). Leave it out, or play it again."
        ) from error
    if regret.shape[1] == 0 or len(set(seeds)) < len(seeds):
        raise NblError(f"{folder}: {regret.shape[1]} rounds of seeds {list(seeds)}: there is nothing to compare.")
    return Run(folder, config, summary, seeds, regret, reward)


def problems(runs: Sequence[Run], at: int | None = None) -> list[Problem]:
    """Runs of the same environment and length, with a label each. `at` cuts all of them at that round."""
    sorted_: dict[str, list[Run]] = {}
    for run in runs:
        if at is None or run.played >= at:
            env = {key: value for key, value in run.config["env"].items() if key not in ("blocks", "horizon")}
            key = json.dumps([env, at or run.played], sort_keys=True, default=str)
            sorted_.setdefault(key, []).append(run)
    if not sorted_:
        longest = max(run.played for run in runs)
        raise NblError(f"at={at}: no run is that long; the longest has {longest} rounds.")
    made = [_problem(members, at or members[0].played) for members in sorted_.values()]
    names = [p.name for p in made]
    return [
        p if names.count(p.name) == 1 else Problem(f"{p.name} ({names[: i + 1].count(p.name)})", *_rest(p))
        for i, p in enumerate(made)
    ]


def _rest(problem: Problem) -> tuple[Any, ...]:
    return problem.env, problem.rounds, problem.measure, problem.entries, problem.shared, problem.notes


def _problem(runs: list[Run], rounds: int) -> Problem:
    regret = all(np.isfinite(run.regret[:, rounds - 1]).all() for run in runs)
    measure = "regret" if regret else "reward"
    entries, notes = [], [] if regret else ["A run has no regret (it was not a simulation): rewards are compared."]
    for label, members in _labelled(runs).items():
        curves: dict[int, Array] = {}
        for run in sorted(members, key=lambda r: str(r.folder)):
            again = sorted(set(run.seeds) & set(curves))
            if again:
                notes.append(f"{label}: seeds {_numbers(again)} were played more than once; the last of them counts.")
            values = run.regret if regret else run.reward
            curves |= {seed: values[row, :rounds] for row, seed in enumerate(run.seeds)}
        seeds = tuple(sorted(curves))
        entries.append(Entry(label, tuple(members), seeds, np.stack([curves[seed] for seed in seeds])))
    shared = tuple(sorted(set.intersection(*(set(e.seeds) for e in entries))))
    if len(shared) > 1:
        left = [f"{e.label} ({len(e.seeds) - len(shared)})" for e in entries if len(e.seeds) > len(shared)]
        if left:
            notes.append(f"Shared seeds: {_numbers(shared)}. Others are left out: {', '.join(left)}.")
    elif len(entries) > 1:
        notes.append(
            "Fewer than two seeds are shared by all: means are over each one's own seeds, and a pair is compared on "
            "the seeds that the two share."
        )
    short = [e.label for e in entries if any(run.played < run.config.get("horizon", 0) for run in e.runs)]
    if short:
        notes.append(f"Stopped before the horizon: {', '.join(short)}.")
    first = runs[0].config
    env, path = first["choices"]["env"], first["env"].get("path")
    table = f" {Path(str(path)).stem}" if env == "table" and path else ""  # of the user's own, which have no other name
    name = f"{env}{table}, {rounds} rounds"
    return Problem(name, first["env"], rounds, measure, tuple(entries), shared, tuple(notes))


def _labelled(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs of one config under one label: the recipe, and the settings in which recipes of that name differ."""
    same: dict[str, list[Run]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for run in runs:
        flat = flatten(_kept(run.config))
        key = json.dumps(flat, sort_keys=True, default=str)
        same.setdefault(key, []).append(run)
        settings[key] = flat
    labels: dict[str, list[Run]] = {}
    for key, members in same.items():
        name = str(members[0].config["recipe"])
        rivals = [flat for other, flat in settings.items() if same[other][0].config["recipe"] == name]
        differing = [
            k for k in dict.fromkeys(k for flat in rivals for k in flat) if len({str(f.get(k)) for f in rivals}) > 1
        ]
        shown = [k for k in differing if settings[key].get(k) is not None and not k.endswith("_target_")]
        if "choices.algorithm" in shown:
            shown = [k for k in shown if not k.startswith("algorithm.")]
        tails = [k.rpartition(".")[2] for k in differing]
        short = {k: t if tails.count(t) == 1 else k for k, t in zip(differing, tails, strict=True)}
        label = " ".join([name, *(f"{short[k]}={settings[key][k]}" for k in shown[:6])])
        while label in labels:
            label += "'"
        labels[label] = members
    return labels


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a run play as it does, apart from the problem."""
    kept = {key: value for key, value in config.items() if key not in _SAME}
    kept["callbacks"] = {
        key: value for key, value in (config.get("callbacks") or {}).items() if key not in _RIDERS and value
    }
    kept["choices"] = {"algorithm": config["choices"].get("algorithm")}
    return kept


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _numbers(seeds: Sequence[int]) -> str:
    """0 to 9, or a list."""
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds[:12])) + (", ..." if len(seeds) > 12 else "")
