"""Columns of a table as numbers or letters, from Arrow, from `datasets`, or from arrays."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from nbl.types import NblError

Array = NDArray[Any]
_MARKS = ("", "?", "-", "--", ".", "*", "na", "n/a", "#n/a", "nan", "none", "null", "unknown", "missing")
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")


class Letters(NamedTuple):
    """A column of categories: the place of each row's value in the sorted list of values. A null is the value ''."""

    codes: Array
    values: list[str]


def from_dataset(data: Any) -> dict[str, Array | Letters]:
    """A `datasets.Dataset`, or all splits of a `DatasetDict`, in order. Images become pixels."""
    import datasets

    if isinstance(data, Mapping):
        data = datasets.concatenate_datasets(list(data.values()))
    images = [key for key, kind in data.features.items() if isinstance(kind, datasets.Image)]
    rest = data.remove_columns(images).with_format("arrow")
    columns = from_arrow(rest[:]) if rest.column_names else {}
    pixels = {key: np.stack([np.asarray(image) for image in data[key]]) for key in images}
    return {key: pixels[key] if key in pixels else columns[key] for key in data.column_names}


def from_object(data: Any) -> dict[str, Array | Letters]:
    """A dict of arrays, a pandas frame, or a dataset."""
    if type(data).__module__.split(".")[0] == "datasets":
        return from_dataset(data)
    if isinstance(data, Mapping):
        return {str(key): _from_given(str(key), value) for key, value in data.items()}
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        import pyarrow

        return from_arrow(pyarrow.Table.from_pandas(data, preserve_index=False))
    raise NblError(f"data is a {type(data).__name__}; need a dict of arrays, a pandas frame or a datasets.Dataset.")


def _from_given(name: str, value: Any) -> Array | Letters:
    try:
        return _from_array(np.asarray(value))
    except ValueError as error:  # numpy: lists of different lengths
        raise NblError(f"column {name!r} is no array: {error}") from error


def _from_array(values: Array) -> Array | Letters:
    if values.dtype.kind in "biuf" and values.ndim:
        return values
    if values.dtype.kind in "USO" and values.ndim == 1:
        found, codes = np.unique(values.astype(str), return_inverse=True)
        return Letters(codes.astype(np.int32), found.tolist())
    raise NblError(f"an array of type {values.dtype} and shape {values.shape} is not a column of numbers or strings.")


def from_arrow(table: Any) -> dict[str, Array | Letters]:
    """Names without the spaces around them."""
    names = [str(key).strip() for key in table.column_names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise NblError(f"two columns have the same name: {', '.join(map(repr, twice))}. Rename one of them.")
    return {name: _from_column(name, table.column(i)) for i, name in enumerate(names)}


def _from_column(name: str, column: Any) -> Array | Letters:
    """An Arrow column; a null becomes NaN, or the value '' among strings, which lose the spaces around them."""
    import pyarrow

    kind = pyarrow.types
    if kind.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if str(column.type) in ("string", "large_string", "string_view"):
        coded = column.cast(pyarrow.large_string()).fill_null("").combine_chunks().dictionary_encode()
        if isinstance(coded, pyarrow.ChunkedArray):
            coded = coded.combine_chunks() if coded.num_chunks != 1 else coded.chunk(0)
        stripped = np.array([value.strip() for value in coded.dictionary.to_pylist()], dtype=object)
        values, rank = np.unique(stripped, return_inverse=True)
        return Letters(rank.astype(np.int32)[coded.indices.to_numpy(zero_copy_only=False)], values.tolist())
    if kind.is_boolean(column.type) or kind.is_null(column.type) or kind.is_decimal(column.type) or column.null_count:
        if kind.is_boolean(column.type):
            column = column.cast(pyarrow.uint8())
        if not kind.is_list(column.type):
            column = column.cast(pyarrow.float64())
    if kind.is_integer(column.type) or kind.is_floating(column.type):
        return cast(Array, column.to_numpy())
    if kind.is_list(column.type) or kind.is_large_list(column.type) or kind.is_fixed_size_list(column.type):
        rows = column.to_pylist()
        if all(row is not None for row in rows) and len({len(row) for row in rows}) == 1:
            return _from_array(np.asarray(rows))
        lengths = sorted({len(row) for row in rows if row is not None})
        few = f"rows of {', '.join(map(str, lengths[:5]))} values" if len(lengths) > 1 else "rows without a value"
        return np.full(len(column), f"has {few}", dtype=object)
    return np.full(len(column), f"is of type {column.type}", dtype=object)  # `readable` says so, if it is used


def readable(source: str, columns: Mapping[str, Array | Letters], names: Collection[str] = ()) -> None:
    """Complain about columns that are neither numbers nor letters, and, but for `names`, numbers read as letters."""
    for name, column in columns.items():
        why = _odd(column.values) if isinstance(column, Letters) and name not in names else ""
        if not isinstance(column, Letters) and column.dtype.kind == "O":
            why = (
                f"{column[0]}: turn it into numbers or strings, one or equally many a row"
                if len(column)
                else "has no rows: take it out"
            )
        if why:
            advice = "" if name in names else f", or leave it out (env.drop=[{name}])"
            raise NblError(f"{source}: column {name!r} {why}{advice}.")


def number(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text))


def _odd(values: list[str]) -> str:
    """Why these values are numbers, written in a way that is not read or not always known; '' for letters."""
    numbers = sum(map(number, values))
    marks = [value for value in values if value.strip().lower() in _MARKS]
    if numbers and marks and any(marks) and numbers + len(marks) == len(values):
        few = ", ".join(repr(mark) for mark in marks if mark)
        return f"has numbers, and among them {few}: where they mean that nothing is known, make the cells empty"
    signs = [value for value in values if not number(value) and number(re.sub(r"[,%$€£\s]", "", value))]
    if signs and numbers + len(signs) + len(marks) == len(values):
        return f"has numbers with signs ({signs[0]!r}): write points for decimals and no thousands, no units"
    return ""


def unnamed(columns: dict[str, Array | Letters]) -> dict[str, Array | Letters]:
    """Without a column that has no name and only counts 0, 1, 2, ... (pandas), or is empty (commas that end lines)."""
    column = columns.get("")
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "if":
        return columns
    counts = np.isnan(column) if column.dtype.kind == "f" else column == np.arange(len(column))
    return {key: value for key, value in columns.items() if key} if counts.all() else columns
