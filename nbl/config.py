"""From a command line to a config: Hydra composes, this file says what went wrong in a sentence."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from nbl.types import NblError

GROUPS = ("recipe", "env", "algorithm", "logger", "trainer")
KEYS = ("horizon", "replicas", "seed", "out", "resume", "log_every", "threads", "checkpoint", "callbacks", "choices")
FREE = ("trainer", "logger", "checkpoint", "callbacks")  # how a run is run: may change when it is resumed
COMPILE = "algorithm.fit.compile"  # so may this


def folder() -> Path:
    """The recipes: inside the package once installed, beside it in the source tree."""
    inside = Path(__file__).parent / "recipes"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "recipes"


def choices(group: str) -> dict[str, str]:
    """Names in a group, each with the first comment of its file."""
    found = {}
    for file in sorted((folder() / group).glob("*.yaml")):
        comments = (line[1:].strip() for line in file.read_text().splitlines() if line.startswith("#"))
        found[file.stem] = next((line for line in comments if line and not line.startswith("@")), "")
    return found


def compose(overrides: Sequence[str]) -> DictConfig:
    """The config that these `key=value` make. `choices` in it says which file of each group was taken."""
    import hydra
    from hydra.errors import ConfigCompositionException, MissingConfigException

    given = parse(overrides)
    if "recipe" not in given:
        near = difflib.get_close_matches("recipe", given, n=1, cutoff=0.7)
        meant = f"There is no key {near[0]!r}; did you mean recipe={given[near[0]]}?\n" if near else ""
        listed = names(choices("recipe"))
        raise NblError(f"{meant}Which recipe? Say recipe=NAME, one of (--help has a line on each):\n{listed}")
    for group in GROUPS:
        if given.get(group) in ("null", ""):
            raise NblError(f"{group}={given[group]}: choose one of {', '.join(choices(group))}.")
    try:
        full = _compose(hydra, overrides)
    except MissingConfigException as error:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        raise NblError(unknown(group or "config", name, error.options or choices(group))) from error
    except ConfigCompositionException as error:
        found = re.search(r"Could not (?:override|append|delete|set)[^']*'([^']+)'", str(error))
        if not found or "+" in str(error).split(found[1])[0][-3:]:
            raise NblError(short(error)) from error
        key = found[1].split("@")[0]
        known = _compose(hydra, [o for o in overrides if o.split("=")[0] in GROUPS])
        keys = [*flatten(OmegaConf.to_container(_task(known), resolve=False)), *GROUPS]
        more = f"\nTo add one that is not there: +{key}=VALUE." if "." in key else ""
        raise NblError(unknown("key", key, keys) + more) from error
    return finish(full)


def finish(full: DictConfig) -> DictConfig:
    """The task's part of a config that Hydra composed, with the names of what was chosen, checked."""
    config = _task(full)
    picked = full.hydra.runtime.choices
    OmegaConf.set_struct(config, False)
    config.recipe = picked.recipe
    config.choices = {group: picked.get(group) for group in GROUPS[1:]}
    if strange := [str(key) for key in config if key not in (*KEYS, *GROUPS)]:
        raise NblError(unknown("key", strange[0], (*KEYS, *GROUPS)))
    for key in KEYS:
        if key not in config:
            raise NblError(f"{key} was taken out of the config, but every run needs it.")
    if not isinstance(config.out, str | int | float | None) or not isinstance(config.checkpoint, DictConfig):
        raise NblError(f"out={config.out} checkpoint={config.checkpoint}: need a folder, and checkpoint.every, .keep.")
    config.out = None if config.out is None else str(config.out)
    for key in ("horizon", "replicas"):
        if not isinstance(config[key], int) or isinstance(config[key], bool) or config[key] < 1:
            raise NblError(f"{key}={config[key]}: need a whole number, at least 1. For example {key}=10.")
    if not isinstance(config.seed, int) or isinstance(config.seed, bool) or not abs(config.seed) < 2**62:
        raise NblError(f"seed={config.seed}: need a whole number of at most 62 bits.")
    for key in ("log_every", "threads"):
        if config[key] is not None and (not isinstance(config[key], int) or config[key] < 1):
            raise NblError(f"{key}={config[key]}: need a whole number, at least 1.")
    every = config.checkpoint.every
    if every is not None and (not isinstance(every, int) or every < 0):
        raise NblError(f"checkpoint.every={every}: need a number of rounds; 0 turns checkpoints off.")
    if not isinstance(config.checkpoint.keep, int) or config.checkpoint.keep < 1:
        raise NblError(f"checkpoint.keep={config.checkpoint.keep}: need a whole number of files, at least 1.")
    return config


def complete(saved: Any) -> DictConfig:
    """A run's saved config, if it is one."""
    missing = [key for key in (*KEYS, *GROUPS) if not isinstance(saved, DictConfig) or key not in saved]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return cast(DictConfig, saved)


def resumed(overrides: Sequence[str], saved: DictConfig) -> DictConfig:
    """The config of the run that is continued. What changes the problem is refused; how it is run may change."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    merged = saved.copy()
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key, now = override.key_or_group, override.value()
        top = key.split(".")[0]
        before = OmegaConf.select(saved, f"choices.{key}" if key in GROUPS[1:] else key)
        if key in ("out", "resume") or before == now:
            continue
        if key == "callbacks" and override.input_line is not None:  # files of callbacks: the same as before?
            without, put_in = (
                compose([f"recipe={saved.recipe}", *more]).callbacks for more in ([], [override.input_line])
            )
            new = {name: part for name, part in put_in.items() if part != without.get(name)}
            if all((saved.callbacks.get(name) or {}).get("_target_") == part._target_ for name, part in new.items()):
                continue
            before = list(saved.callbacks)
        if key in ("logger", "trainer"):
            merged[key] = compose([f"recipe={saved.recipe}", f"{key}={now}"])[key]
            merged.choices[key] = now
        elif (top in FREE and "." in key) or key in ("threads", COMPILE):
            if OmegaConf.select(saved, key, default=()) == () and not (override.is_add() or override.is_force_add()):
                raise NblError(unknown("key", key, flatten(OmegaConf.to_container(saved))))
            OmegaConf.update(merged, key, None if override.is_delete() else now, merge=False, force_add=True)
        else:
            raise NblError(
                f"{key}={now}: the run to resume has {key}={before}. A run that is resumed keeps its problem: "
                "drop this override, or start a new run without resume=."
            )
    return merged


def parse(overrides: Iterable[str]) -> dict[str, str]:
    """`key=value` apart; the value as written."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, given = OverridesParser.create(), {}
    for text in overrides:
        try:
            parser.parse_overrides([text])
        except HydraException as error:
            raise NblError(f"Cannot read {text!r}: arguments are key=value; --help lists them.") from error
        key, _, value = text.partition("=")
        given[key] = value
    return given


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """One screen about a name that is not there: the nearest ones, then all if they are few."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, names, n=4, cutoff=0.5)
    tail = {key.split(".")[-1]: key for key in names}
    close = difflib.get_close_matches(name.split(".")[-1], tail, n=3, cutoff=0.6)
    near += [tail[t] for t in close if tail[t] not in near]
    lines = [f"There is no {what} {name!r}."]
    if near:
        lines.append("Did you mean: " + ", ".join(near) + "?")
    if len(names) <= 40:
        lines.append("All of them: " + ", ".join(sorted(names)))
    return "\n".join(lines)


def table(rows: dict[str, str]) -> str:
    width = max(map(len, rows), default=0)
    return "\n".join(f"  {name:<{width}}  {text}".rstrip() for name, text in rows.items())


def names(rows: Iterable[str]) -> str:
    """Many names on few lines."""
    return textwrap.fill(", ".join(rows), 100, initial_indent="  ", subsequent_indent="  ")


def flatten(tree: Any, prefix: str = "") -> list[str]:
    """Every key of a nested dict, dotted."""
    keys = []
    for key, value in tree.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, dict):
            keys += flatten(value, f"{prefix}{key}.")
    return keys


def _compose(hydra: Any, overrides: Sequence[str]) -> DictConfig:
    from hydra.core.global_hydra import GlobalHydra

    state = GlobalHydra.instance()
    outer, state.hydra = state.hydra, None  # a job of a sweep composes inside of Hydra
    try:
        with hydra.initialize_config_dir(str(folder().resolve()), version_base="1.3"):
            full: DictConfig = hydra.compose("train", overrides=list(overrides), return_hydra_config=True)
    finally:
        GlobalHydra.instance().hydra = outer
    return full


def _task(full: DictConfig) -> DictConfig:
    config = full.copy()
    OmegaConf.set_readonly(config, False)
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    return config


def short(error: BaseException) -> str:
    """An error on one screen."""
    return "\n".join(line for line in str(error).splitlines() if line.strip())[:8000]
