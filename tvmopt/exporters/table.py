"""Rows for a source model: CSV, Parquet, ``.npz``, or the input example of its MLflow model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.errors import ConfigError, in_one_line
from tvmopt.evaluate.dataset import LABEL_KEYS, read_arrays
from tvmopt.exporters.source import SourceModel

#: Endings of files that hold a table.
TABLE_ENDINGS = (".csv", ".parquet", ".pq")
_EXAMPLE = ".json"


@dataclasses.dataclass(frozen=True)
class SourceRows:
    """Rows as the source takes them, and their labels.

    Attributes:
        table: A pandas table with the columns of the signature, or an array.
        labels: One label a row; None without labels.
    """

    table: Any
    labels: np.ndarray | None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.table)


def read_rows(path: Path, source: SourceModel, label: str = "") -> SourceRows:
    """Return the rows of a file.

    Args:
        path: The file.
        source: The model that takes them.
        label: Column with the labels; empty for one of the usual names, or none.

    Raises:
        ConfigError: When the file is unreadable, or lacks a column.
    """
    if path.suffix.lower() in (*TABLE_ENDINGS, _EXAMPLE):
        return _of_table(_read_table(path, source), source, label, path)
    names = [tensor.name for tensor in source.tensors] or [c.name for c in source.columns]
    arrays, labels = read_arrays(path, names)
    if label:
        if label not in arrays:
            raise ConfigError(
                f"label must be an array of data, but '{path.name}' holds {', '.join(arrays)}"
            )
        labels = arrays.pop(label)
    if not source.columns:
        return SourceRows(_tensor(arrays, source, path), labels)
    return _of_table(_table_of(arrays, source, path), source, "", path, labels)


def _read_table(path: Path, source: SourceModel) -> Any:
    import pandas

    texts = {column.name: str for column in source.columns if column.is_text}
    try:
        if path.suffix.lower() == ".csv":
            return pandas.read_csv(path, dtype=texts)
        if path.suffix.lower() == _EXAMPLE:
            return _example(path)
        return pandas.read_parquet(path)
    except Exception as error:  # each reader raises other errors
        raise ConfigError(
            f"data must be a readable table, but '{path}' is not: {type(error).__name__}: "
            f"{in_one_line(error)}"
            "; save it again as .csv or .parquet"
        ) from error


def _example(path: Path) -> Any:
    """Return the input example that MLflow wrote: a table, or an array."""
    import pandas

    found = json.loads(path.read_text())
    if isinstance(found, dict) and "columns" in found:
        return pandas.DataFrame(found["data"], columns=found["columns"])
    if isinstance(found, dict):
        found = found.get("inputs", found.get("instances", found))
    return np.asarray(found)


def _of_table(
    table: Any, source: SourceModel, label: str, path: Path, labels: np.ndarray | None = None
) -> SourceRows:
    """Take labels and columns out of a table, with the dtypes of the signature."""
    if not source.columns or isinstance(table, np.ndarray):
        array = np.asarray(table)
        if not source.columns and not source.tensors:
            return SourceRows(array, labels)
        if source.tensors:
            tensor = source.tensors[0]
            shape = (-1, *tensor.shape[1:]) if all(n > 0 for n in tensor.shape[1:]) else array.shape
            return SourceRows(array.astype(tensor.dtype).reshape(shape), labels)
        table = _table_of({"data": array}, source, path)
    if label and label not in table.columns:
        raise ConfigError(
            f"label must be a column of data, but '{path.name}' holds "
            f"{', '.join(map(str, table.columns[:8]))}"
        )
    names = [column.name for column in source.columns]
    usual = [key for key in LABEL_KEYS if key in table.columns and key not in names]
    if labels is None and (label or usual):
        labels = np.asarray(table[label or usual[0]])
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise ConfigError(
            f"data must hold every column of the model's signature, but '{path.name}' lacks "
            f"{', '.join(map(repr, missing[:5]))}"
        )
    kept = table[names].reset_index(drop=True)
    if not len(kept):
        raise ConfigError(f"data must hold at least one row, but '{path.name}' holds none")
    for column in source.columns:
        try:
            kept[column.name] = kept[column.name].astype(column.dtype)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"column {column.name!r} of data must be {column.dtype}, as the signature says, "
                f"but: {in_one_line(error)}"
                "; convert the column"
            ) from error
    return SourceRows(kept, labels)


def _table_of(arrays: dict[str, np.ndarray], source: SourceModel, path: Path) -> Any:
    """Return a table of arrays by column, or of one matrix."""
    import pandas

    names = [column.name for column in source.columns]
    if len(arrays) == 1 and next(iter(arrays.values())).ndim == 2:
        [matrix] = arrays.values()
        if matrix.shape[1] != len(names):
            raise ConfigError(
                f"a matrix of data must have {len(names)} columns, but '{path.name}' has "
                f"{matrix.shape[1]}"
            )
        return pandas.DataFrame(matrix, columns=names)
    return pandas.DataFrame({name: array.reshape(len(array)) for name, array in arrays.items()})


def _tensor(arrays: dict[str, np.ndarray], source: SourceModel, path: Path) -> np.ndarray:
    if len(source.tensors) > 1 or len(arrays) != 1:
        raise ConfigError(
            f"data must hold one array for the one input of the model, but '{path.name}' holds "
            f"{', '.join(arrays)}"
        )
    [array] = arrays.values()
    return array.astype(source.tensors[0].dtype) if source.tensors else array
