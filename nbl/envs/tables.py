"""Tables from files, from the Hugging Face Hub, or from memory, as columns and classes.

    load("mushroom", path="data/")                        # data/mushroom.parquet, .npz, .csv or .tsv
    load(path="my.csv", target="label")                   # a table of your own
    load(hub="ylecun/mnist", target="label")              # `datasets.load_dataset`; all splits, one after another
    load(data=frame, target="label")                      # a pandas frame, a `datasets.Dataset`, or a dict of arrays

A path that is given is the only place looked at; without one, the folder $NBL_DATA_DIR and then the Hub. Files are read
by pyarrow, the tables of which `datasets` is made: nothing is copied into a cache. A folder that
`Dataset.save_to_disk` wrote is a table as well. `datasets` and `pyarrow` are imported when something is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from nbl.envs.columns import Array, Letters, from_arrow, from_dataset, from_object, number, readable, unnamed
from nbl.types import NblError

SUFFIXES = (".parquet", ".npz", ".csv", ".tsv")
FOLDER = "NBL_DATA_DIR"
MISSING = ("error", "drop", "zero")
LARGEST = 1e37  # that a float32 holds with room to spare


@dataclass
class Table:
    """N rows. Columns are Letters, numbers (N,), or blocks of numbers (N, ...); labels count from 0 into `classes`."""

    source: str
    columns: dict[str, Array | Letters]
    labels: Array
    classes: list[Any]


Hub = str | Mapping[str, Any]


def load(
    name: str | None = None,
    path: str | os.PathLike[str] | None = None,
    hub: Hub | None = None,
    data: Any = None,
    target: str | None = "label",
    drop: Sequence[str] = (),
    missing: str = "error",
    origin: str | None = None,
) -> Table:
    """One table.

    Args:
        name: of the file to look for in a folder, without its ending.
        path: a file or a folder.
        hub: a Hub id, or the arguments of `datasets.load_dataset` by name; `target` among them is the class there.
        data: a table in memory; nothing is looked for.
        target: the column that holds the class. In an .npz `labels` and `y` will do.
        drop: columns to leave out (row numbers, names).
        missing: numbers that are not there: `error`, `drop` the row, or `zero`.
        origin: where the data come from, for the message when they are not found.
    """
    if missing not in MISSING:
        raise NblError(f"missing={missing!r}: choose one of {', '.join(MISSING)}.")
    target = None if target is None else str(target)  # a name of digits is a number on a command line
    drop = [str(name) for name in ([drop] if isinstance(drop, str | int) else drop)]
    if data is not None:
        source, columns = name or type(data).__name__, from_object(data)
    else:
        source, columns, target = find(name, path, hub, target, origin)
    if target not in columns:
        key = "+env.hub.target" if source.startswith("Hub ") and not isinstance(hub, str) else "env.target"
        headless = " These are numbers: the first line has to hold names." if all(map(number, columns)) else ""
        raise NblError(
            f"{source}: which column is the class? {target!r} is none of {_some(columns)}. Say {key}=NAME "
            f"(in Python target=).{headless}"
        )
    if unknown := sorted(set(drop) - set(columns)):
        raise NblError(f"{source}: drop={unknown}: no such column. There are {_some(columns)}.")
    lengths = {key: len(c.codes if isinstance(c, Letters) else c) for key, c in columns.items()}
    if len(set(lengths.values())) != 1:
        raise NblError(f"{source}: columns differ in length: {lengths}. A table has one row for each class label.")
    columns = {key: column for key, column in columns.items() if key not in drop or key == target}
    readable(source, columns, [target])
    columns = complete(source, columns, target, missing)
    labels, classes = classify(source, target, columns.pop(target))
    if not columns:
        raise NblError(f"{source}: there is no column beside the class {target!r}.")
    return Table(source, columns, labels, classes)


def find(
    name: str | None, path: str | os.PathLike[str] | None, hub: Hub | None, target: str | None, origin: str | None
) -> tuple[str, dict[str, Array | Letters], str | None]:
    """Where it is, the columns, and the class. The error names every place that was tried."""
    tried = []
    for where, key in ((path, "env.path"), (None if path else os.environ.get(FOLDER), FOLDER)):
        if not where:
            tried.append(f"{key}: not given" if not path else f"{key}: not looked at, as env.path is given")
            continue
        file = _file(Path(where).expanduser(), name)
        if isinstance(file, Path):
            return str(file), from_file(file), _alias(file, target)
        tried.append(f"{key}={where}: {file}")
    if hub and not path:
        options = dict(hub) if isinstance(hub, Mapping) else {"path": str(hub)}
        target = options.pop("target", target)
        try:
            return f"Hub {options['path']}", from_hub(options), target
        except Exception as error:  # a library of libraries: connection, permission, script, format
            tried.append(f"Hub {options.get('path')}: {type(error).__name__}: {str(error).splitlines()[0][:300]}")
    else:
        tried.append("Hub: not looked at, as env.path is given" if path else "Hub: env.hub is not given")
    raise NblError(
        f"no data for {name or 'the table'}. Looked in\n  "
        + "\n  ".join(tried)
        + f"\nPut {name or 'NAME'}.parquet, .npz or .csv (columns of features, and `{target}`) in a folder "
        f"and say env.path=FOLDER or {FOLDER}=FOLDER; env.path=FILE takes any other file, env.hub=OWNER/NAME any table "
        "on the Hugging Face Hub." + (f" Origin of these data: {origin}." if origin else "")
    )


def _file(where: Path, name: str | None) -> Path | str:
    """The file meant by a path, or why there is none."""
    if where.is_file():
        return (
            where if where.suffix.lower() in SUFFIXES else f"cannot read {where.suffix or 'it'}; {_few(SUFFIXES)} can"
        )
    if not where.is_dir():
        return "no such file or folder"
    if name:
        files = [where / f"{name}{suffix}" for suffix in SUFFIXES]
        found = [file for file in files if file.is_file()] + [where / name] * _saved(where / name)
        if found or not _saved(where):
            return found[0] if found else f"no {_few([file.name for file in files])} there"
    return where if _saved(where) else "a folder; give the file in it that is meant"


def _saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote it."""
    return any((folder / mark).is_file() for mark in ("state.json", "dataset_dict.json"))


def _alias(file: Path, target: str | None) -> str | None:
    if file.suffix.lower() != ".npz":
        return target
    with np.load(file, allow_pickle=False) as arrays:
        return next((key for key in (target, "label", "labels", "y") if key in arrays.files), target)


def from_file(file: Path) -> dict[str, Array | Letters]:
    try:
        if file.is_dir():
            import datasets

            return from_dataset(datasets.load_from_disk(str(file)))
        if file.suffix.lower() == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return from_object({key: arrays[key] for key in arrays.files})
        if file.suffix.lower() == ".parquet":
            from pyarrow import parquet

            return from_arrow(parquet.ParquetFile(file).read())
        from pyarrow import csv

        with file.open("rb") as lines:
            header = lines.readline()
        if header.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise NblError("it is in UTF-16. Save it as UTF-8.")
        delimiter = max(",;\t|", key=header.decode("utf-8", errors="replace").count)
        return unnamed(from_arrow(csv.read_csv(file, parse_options=csv.ParseOptions(delimiter=delimiter))))
    except UnicodeDecodeError as error:
        raise NblError(f"cannot read {file}: {error}. Save it as UTF-8.") from error
    except NblError as error:
        raise NblError(f"cannot read {file}: {error}") from error
    except Exception as error:  # pyarrow's, numpy's, zipfile's
        raise NblError(f"cannot read {file}: {type(error).__name__}: {str(error).splitlines()[0][:300]}") from error


def from_hub(options: dict[str, Any]) -> dict[str, Array | Letters]:
    import datasets

    return from_dataset(datasets.load_dataset(**options))


def complete(source: str, columns: dict[str, Array | Letters], target: str, missing: str) -> dict[str, Array | Letters]:
    """No NaN and no infinity: an error, fewer rows, or zeros. A row without a class is always an error."""
    gaps = {}
    for key, column in columns.items():
        if isinstance(column, Letters) or column.dtype.kind != "f":
            continue
        if infinite := int(np.isinf(column).sum()):
            raise NblError(f"{source}: column {key!r} has {infinite} infinite values; mend or leave it out (drop).")
        if (largest := float(np.nanmax(np.abs(column), initial=0.0))) > LARGEST:
            raise NblError(f"{source}: column {key!r} has numbers up to {largest:g}; divide or leave it out (drop).")
        if (gap := np.isnan(column)).any():
            gaps[key] = gap.reshape(len(gap), -1).any(1)
    label = columns[target]
    if isinstance(label, Letters) and "" in label.values:  # an empty cell, or a null
        gaps[target] = label.codes == label.values.index("")
    if target in gaps and gaps[target].any():
        raise NblError(f"{source}: {int(gaps[target].sum())} rows have no class in {target!r}; take them out.")
    gaps.pop(target, None)
    if not gaps:
        return columns
    if missing == "error":
        counts = ", ".join(f"{key} ({int(gap.sum())})" for key, gap in list(gaps.items())[:10])
        raise NblError(f"{source}: values are missing: {counts}. Say env.missing=drop or zero, or env.drop=[COLUMN].")
    if missing == "zero":
        filled = {key: np.nan_to_num(cast(Array, columns[key]), nan=0.0) for key in gaps}
        return {**columns, **filled}
    keep = ~np.any(list(gaps.values()), axis=0)
    if not keep.any():
        worst = max(gaps, key=lambda key: int(gaps[key].sum()))
        raise NblError(f"{source}: missing=drop leaves no row; {worst!r} is empty in {int(gaps[worst].sum())} of them.")
    return {
        key: Letters(column.codes[keep], column.values) if isinstance(column, Letters) else column[keep]
        for key, column in columns.items()
    }


def classify(source: str, target: str, column: Array | Letters) -> tuple[Array, list[Any]]:
    """Labels 0 .. K-1 in the sorted order of the classes that occur."""
    values = column.codes if isinstance(column, Letters) else column
    if values.ndim != 1:
        raise NblError(f"{source}: the class {target!r} has shape {values.shape}; need one value a row.")
    found, labels = np.unique(values, return_inverse=True)
    if len(found) < 2:
        raise NblError(f"{source}: {target!r} has {len(found)} class in {len(values)} rows; need at least 2.")
    if len(found) > max(2, len(values) // 2):
        raise NblError(f"{source}: {target!r} has {len(found)} values in {len(values)} rows; is it a class?")
    classes = [column.values[int(i)] for i in found] if isinstance(column, Letters) else found.tolist()
    return labels.astype(np.int64), classes


def _some(columns: Mapping[str, Any]) -> str:
    names = list(columns)
    return ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")


def _few(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
