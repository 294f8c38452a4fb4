"""A paper's figures as one page of YAML (recipes/suite/<name>.yaml), and the runs they need.

    scales:                                   # what `scale=` sets; other keys are names for the overrides, as $tau
      smoke: {horizon: 120, replicas: 3, tau: 6}
    panels:
      fig1a:
        title: Linear bandit
        env: linear
        draw: regret                          # regret (or reward, where it is not known), average (R(t)/t), times and
                                              # cost (with `of: another panel`), sweep, function, totals and wins
                                              # (tables over other panels), grid (`grid: {KEY: [..], KEY: $list}`)
        seed: 1000                            # of the panel's runs; 0 where it is not given
        set: [env.noise=0.5]                  # overrides of every run of the panel
        runs: {Lin-ES: recipe=lin_es}         # label -> overrides, as the command line has them
        optional: true                        # leave the panel out where there is no such env; needs: VARIABLE likewise
        scales: {smoke: null}                 # null leaves the panel out; {horizon: 300} changes what the scale says
        claims:                               # a test of nbl.report.claims and the labels it compares
          - {paper: "Lin-ES is competitive.", at_most: [Lin-ES, [LinUCB, LinTS]], factor: 1.25}
      fig2:
        draw: sweep                           # base (or bases, by name) with one key changed
        bases: {TS: recipe=neural_ts, UCB: recipe=neural_ucb}
        sweep: {name: delay, key: callbacks.delay.rounds, values: [1, 100]}
        claims: [{paper: "TS suffers less.", grows_less: [TS, UCB]}]
      table2: {draw: wins, over: [fig1a, fig1b], level: 0.1}   # tables over panels; correction: none or holm

Runs whose configs are the same are one run, whichever panels they are in. Only this file knows the page's format.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nbl import config as configs
from nbl.types import NblError

DRAWS = ("regret", "average", "times", "cost", "sweep", "grid", "function", "totals", "wins")
TESTS = ("better", "close", "at_most", "best", "faster", "sublinear", "grows_less", "lowest", "sensitive", "slope")
MEASURES = ("regret", "reward", "select", "update", "round")
_PAGE = ("title", "paper", "about", "interval", "scales", "panels")
_PANEL = (
    "title",
    "env",
    "draw",
    "set",
    "runs",
    "base",
    "bases",
    "sweep",
    "grid",
    "seed",
    "of",
    "over",
    "level",
    "correction",
    "function",
    "scales",
    "claims",
    "note",
    "optional",
    "needs",
)
_CLAIM = ("paper", "measure", "within", "factor", "at", "bound", "others", "note", *TESTS)
_FREE = ("out", "id", "resume", "recipe", "choices", "threads", "logger", "checkpoint", "log_every")  # not the problem
_RIDERS = ("clock", "progress")  # callbacks that only look on


@dataclass(frozen=True)
class Run:
    """One run. `key` is a digest of its config: a folder with another key holds another run."""

    name: str
    folder: Path
    command: str  # what makes it this run, as scripts/train.py would take it
    overrides: tuple[str, ...]  # the same with its folder and what rides along
    key: str
    horizon: int
    replicas: int

    @property
    def size(self) -> int:
        return self.horizon * self.replicas


@dataclass(frozen=True)
class Panel:
    """One picture, with its runs by label and what the paper says about it."""

    name: str
    title: str
    draw: str
    runs: dict[str, Run] = field(default_factory=dict)
    claims: tuple[dict[str, Any], ...] = ()
    note: str = ""
    missing: str = ""  # why it cannot be made, if it cannot
    sweep: dict[str, Any] | None = None
    grid: dict[str, Any] | None = None
    function: dict[str, Any] | None = None
    bases: tuple[str, ...] = ()  # of a sweep with several
    over: dict[str, str] = field(default_factory=dict)  # panels that a table is over, with their titles
    level: float = 0.1  # of its tests
    correction: str = "none"


@dataclass(frozen=True)
class Suite:
    """A page at one scale."""

    name: str
    title: str
    paper: str
    about: str
    scale: str
    minutes: float | None  # measured, where the page says so
    panels: tuple[Panel, ...]
    interval: float = 0.95  # of the bands in the pictures

    def chosen(self, only: Sequence[str]) -> tuple[Panel, ...]:
        """The panels with these names; the beginning of a name (fig1) takes all that begin so."""
        if not only:
            return self.panels
        for name in only:
            if not any(panel.name.startswith(name) for panel in self.panels):
                raise NblError(configs.unknown(f"panel at scale={self.scale}", name, [p.name for p in self.panels]))
        return tuple(p for p in self.panels if any(p.name.startswith(name) for name in only))


def runs(panels: Iterable[Panel]) -> list[Run]:
    """The runs of these panels, each once."""
    return list({run.key: run for panel in panels for run in panel.runs.values()}.values())


def read(name: str) -> dict[str, Any]:
    """The page of a suite: a name in recipes/suite, or a file."""
    file = Path(name) if name.endswith((".yaml", ".yml")) else configs.folder() / "suite" / f"{name}.yaml"
    if not file.is_file():
        raise NblError(configs.unknown("suite", name, configs.choices("suite")))
    page: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    _known(page, _PAGE, f"{file.name}")
    return dict(page)


def plan(name: str, scale: str, out: Path) -> Suite:
    """Every panel of the page at this scale, with all its runs composed; what is wrong with it is said here."""
    page = read(name)
    scales = page["scales"]
    if scale not in scales:
        raise NblError(configs.unknown("scale", scale, scales))
    made: dict[str, Panel] = {}
    owners: dict[str, Run] = {}
    absent: set[str] = set()  # panels left out at this scale
    for key, part in page["panels"].items():
        _known(part, _PANEL, f"panel {key}")
        own = (part.get("scales") or {}).get(scale, {})
        if own is None:
            absent.add(key)
            continue
        made[key] = _panel(key, part, {**scales[scale], **own}, out, made, owners, absent)
    about = {text: " ".join(str(page.get(text, "")).split()) for text in ("title", "paper", "about")}
    return Suite(
        Path(name).stem,
        **about,
        scale=scale,
        minutes=scales[scale].get("minutes"),
        panels=tuple(made.values()),
        interval=float(page.get("interval", 0.95)),
    )


def digest(config: DictConfig) -> str:
    """What a run plays, in twelve letters. Where it writes and how it logs is not part of it."""
    plain: Any = OmegaConf.to_container(config, resolve=True)
    kept = {key: value for key, value in plain.items() if key not in _FREE}
    kept["callbacks"] = {key: part for key, part in plain["callbacks"].items() if part and key not in _RIDERS}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def _panel(
    name: str,
    part: dict[str, Any],
    scale: dict[str, Any],
    out: Path,
    made: dict[str, Panel],
    owners: dict[str, Run],
    absent: set[str],
) -> Panel:
    draw = part.get("draw", "regret")
    if draw not in DRAWS:
        raise NblError(f"panel {name}: {configs.unknown('draw', draw, DRAWS)}")
    panel = Panel(
        name,
        part.get("title", name),
        draw,
        claims=tuple(part.get("claims") or ()),
        note=" ".join(str(part.get("note", "")).split()),
        sweep=part.get("sweep"),
        grid=_grid(part, scale, name) if "grid" in part else None,
        function=_values(part.get("function"), scale, f"panel {name}"),
        bases=tuple(part.get("bases") or ()),
        level=float(part.get("level", 0.1)),
        correction=str(part.get("correction", "none")),
    )
    if panel.sweep and "values" in scale:
        panel = replace(panel, sweep={**panel.sweep, "values": scale["values"]})
    env = part.get("env")
    if part.get("optional") and env not in configs.choices("env"):
        return replace(panel, missing=f"it needs env={env}, which is not there.")
    if (variable := part.get("needs")) and not os.environ.get(variable):
        return replace(panel, missing=f"it needs data: say where they are with {variable}=DIR.")
    if of := part.get("of"):
        if of not in made:
            raise NblError(f"panel {name}: {configs.unknown('panel above it', of, made)}")
        panel = replace(panel, runs=made[of].runs, missing=made[of].missing)
    elif over := part.get("over"):
        for other in over:
            if other not in made and other not in absent:
                raise NblError(f"panel {name}: {configs.unknown('panel above it', other, made)}")
        there = [made[other] for other in over if other in made and not made[other].missing]
        runs = {f"{p.name}/{label}": run for p in there for label, run in p.runs.items()}
        panel = replace(panel, runs=runs, over={p.name: p.title for p in there})
        return panel if there else replace(panel, missing="none of its panels can be made.")
    else:
        panel = replace(panel, runs=_runs(name, part, scale, out, owners))
    for claim in panel.claims:
        _check(panel, claim)
    return panel


def _runs(name: str, part: dict[str, Any], scale: dict[str, Any], out: Path, owners: dict[str, Run]) -> dict[str, Run]:
    """The panel's runs by label. A config seen in an earlier panel is that panel's run."""
    written: dict[str, Any] = dict(part.get("runs") or {})
    if sweep := part.get("sweep"):
        label = sweep.get("name", sweep["key"])
        for base, text in (part.get("bases") or {"": part.get("base", "")}).items():
            for value in scale.get("values", sweep["values"]):
                written[f"{base} {label}={value}".strip()] = [*_split(text), f"{sweep['key']}={value}"]
    if "grid" in part:
        axes = _grid(part, scale, name)
        for values in itertools.product(*axes.values()):
            point = [f"{key}={value}" for key, value in zip(axes, values, strict=True)]
            label = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in zip(axes, values, strict=True))
            written[label] = [*_split(part["base"]), *point]
    shared = [*([f"env={part['env']}"] if "env" in part else []), *_split(part.get("set") or ())]
    found: dict[str, Run] = {}
    for label, text in written.items():
        given = [_fill(override, scale, f"panel {name}, {label}") for override in (*_split(text), *shared)]
        problem = [*given, f"horizon={scale['horizon']}", f"replicas={scale['replicas']}"]
        problem.append(f"seed={part.get('seed', 0)}")
        folder = out / "runs" / name / re.sub(r"[^\w.=-]+", "_", label)
        clock = f"+callbacks.clock={{_target_:nbl.clock.Clock,file:'{folder / 'timing.csv'}'}}"
        sparse = (f"log_every={max(1, scale['horizon'] // 20)}", f"checkpoint.every={max(200, scale['horizon'] // 10)}")
        riders = (clock, "callbacks.progress=null", "logger=none", "threads=1", *sparse, f"out='{folder}'")
        try:
            key = digest(configs.compose(problem))
        except NblError as error:
            raise NblError(f"panel {name}, {label}: {error}") from error
        run = Run(
            f"{name}/{label}", folder, shlex.join(given), (*problem, *riders), key, scale["horizon"], scale["replicas"]
        )
        found[label] = owners.setdefault(key, run)
    return found


def _grid(part: dict[str, Any], scale: Mapping[str, Any], name: str) -> dict[str, list[Any]]:
    """The axes of a grid: values as written, or the scale's by name ($nus)."""
    axes: dict[str, list[Any]] = {}
    for key, values in part["grid"].items():
        found = scale.get(values[1:]) if isinstance(values, str) and values.startswith("$") else values
        if not isinstance(found, list) or not found:
            raise NblError(f"panel {name}: grid of {key} is {values!r}: need a list, or $NAME of one in the scale.")
        axes[key] = found
    return axes


def _check(panel: Panel, claim: dict[str, Any]) -> None:
    """A claim has one test, and compares what is there."""
    _known(claim, _CLAIM, f"a claim of panel {panel.name}")
    tests = [test for test in TESTS if test in claim]
    if len(tests) != 1:
        raise NblError(f"panel {panel.name}: a claim has one of {', '.join(TESTS)}; this one has {len(tests)}: {claim}")
    if claim.get("measure", "regret") not in MEASURES:
        raise NblError(f"panel {panel.name}: {configs.unknown('measure', claim['measure'], MEASURES)}")
    if panel.draw != "function":
        if tests[0] not in ("best", "sublinear") and not (
            isinstance(claim[tests[0]], list) and len(claim[tests[0]]) == 2
        ):
            raise NblError(f"panel {panel.name}: {tests[0]} compares two: [A, B], or [A, [B, C]] for each of several.")
        if tests[0] == "close" and "within" not in claim:
            raise NblError(f"panel {panel.name}: close needs within=SHARE, for example 0.1: {claim}")
        known = panel.bases if tests[0] == "grows_less" else panel.runs
        for label in labels(claim, panel.runs):
            if label not in known:
                raise NblError(f"panel {panel.name}: {configs.unknown('label', label, known)}")


def labels(claim: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """The runs that a claim speaks of; `best` speaks of all that are known, unless it names the others."""
    test = next(test for test in TESTS if test in claim)
    sides = [claim["best"], *claim.get("others", known)] if test == "best" else claim[test]
    sides = [sides] if isinstance(sides, str) else sides  # sublinear: one, or a list
    flat = [label for side in sides for label in (side if isinstance(side, list) else [side])]
    return list(dict.fromkeys(flat))


def _split(text: str | Sequence[str]) -> list[str]:
    return shlex.split(text) if isinstance(text, str) else [str(item) for item in text]


def _fill(override: str, scale: Mapping[str, Any], where: str) -> str:
    try:
        return Template(override).substitute(scale)
    except (KeyError, ValueError) as error:
        raise NblError(f"{where}: {override!r} needs {error}, which the scale does not set.") from error


def _values(part: Any, scale: Mapping[str, Any], where: str) -> Any:
    """The same with every value `$name` taken from the scale, as it is written there: a number, a list."""
    if isinstance(part, dict):
        return {key: _values(value, scale, where) for key, value in part.items()}
    if isinstance(part, str) and part.startswith("$"):
        if part[1:] not in scale:
            raise NblError(f"{where}: {part!r} needs '{part[1:]}', which the scale does not set.")
        return scale[part[1:]]
    return part


def _known(part: Any, names: Iterable[str], where: str) -> None:
    if not isinstance(part, dict):
        raise NblError(f"{where}: need keys and values, not {part!r}.")
    for key in part:
        if key not in names:
            raise NblError(f"{where}: {configs.unknown('key', str(key), names)}")
