"""Find out which values a source refuses: missing ones, infinities, unknown categories.

The source itself is asked, with a few rows in which one column is changed. A compiled model
computes something for any value; the interface lets it refuse what its source refuses. What the
source accepts, but the exported graph answers in another way, is refused as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvmopt.errors import TvmoptError
from tvmopt.exporters.compare import agreement
from tvmopt.exporters.exported import Exported
from tvmopt.runtime.interface import SourceColumn, SourceInterface

_UNKNOWN_TEXT, _UNKNOWN_NUMBER = "\ufffdunknown", 987654321.0
_ROWS = 16
# Numbers beyond what float32 holds: its range, and whole numbers without rounding.
_HUGE = {"f": (1e300, -1e300), "i": (2**62 + 1, -(2**62) - 1), "u": (2**62 + 1,)}
_FLOAT32_MAX, _FLOAT32_WHOLE = float(np.finfo(np.float32).max), float(2**24)
Answer = Callable[[SourceInterface, Any], np.ndarray]


def with_edges(
    interface: SourceInterface,
    exported: Exported,
    table: Any,
    answer: Answer,
    tables: Mapping[str, Sequence[str]],
    categories: Mapping[str, Sequence[str | float]],
) -> SourceInterface:
    """Return the interface with what each column accepts.

    Args:
        interface: The interface.
        exported: The export, with the source's ``predict``.
        table: A pandas table with at least one row that the source accepts.
        answer: Gives the answer of the exported graph for a table, without checks.
        tables: Strings that the graph knows of each input of texts.
        categories: Categories that an encoder knows, by column; other values may be refused.
    """
    columns = []
    for column in interface.columns:
        kind = "" if column.text else table[column.name].dtype.kind
        changes: dict[str, tuple[Any, ...]] = {}
        if kind == "f":
            changes = {"missing": (np.nan,), "infinite": (np.inf, -np.inf)}
        elif column.text:
            changes = {"missing": (np.nan,), "none": (None,)}
        accepted: dict[str, Any] = {
            name: all(_accepts(interface, exported, table, column, v, answer) for v in values)
            for name, values in changes.items()
        }
        huge = _HUGE.get(kind, ()) if table[column.name].dtype.itemsize > 4 else ()
        if not all(_accepts(interface, exported, table, column, v, answer) for v in huge):
            accepted["largest"] = _FLOAT32_MAX if kind == "f" else _FLOAT32_WHOLE
        known = categories.get(column.name)
        if known is not None or column.text:
            value = _UNKNOWN_TEXT if column.text else _UNKNOWN_NUMBER
            if not _accepts(interface, exported, table, column, value, answer):
                accepted["allowed"] = tuple(tables[column.input] if known is None else known)
        columns.append(dataclasses.replace(column, **accepted))
    return dataclasses.replace(interface, columns=tuple(columns))


def refuses_all_unknown(interface: SourceInterface, exported: Exported, table: Any) -> bool:
    """Return whether the interface refuses every category that an encoder of the source refuses.

    The source itself is asked: it must accept an unknown value in each column without a list of
    allowed ones.
    """
    for column in interface.columns:
        if column.allowed is not None:
            continue
        rows = table.iloc[:_ROWS].copy()
        dtype = rows[column.name].dtype
        value = _UNKNOWN_TEXT if column.text else _UNKNOWN_NUMBER
        if dtype.kind == "b" or (dtype.kind in "iu" and np.iinfo(dtype).max < _UNKNOWN_NUMBER):
            return False
        rows[column.name] = np.array([value] * len(rows), object if column.text else dtype)
        try:
            exported.predict(rows)
        except Exception:  # the source's refusal, of whatever class
            return False
    return True


def _accepts(
    interface: SourceInterface,
    exported: Exported,
    table: Any,
    column: SourceColumn,
    value: Any,
    answer: Answer,
) -> bool:
    """Return whether the source answers rows with ``value`` in a column, and the graph alike."""
    rows = table.iloc[:_ROWS].copy()
    dtype = rows[column.name].dtype
    values = np.array([value] * len(rows), object)
    rows[column.name] = values.astype(object if column.text else dtype)
    try:
        want = np.asarray(exported.predict(rows))
    except Exception:  # the source's refusal, of whatever class
        return False
    try:
        with np.errstate(over="ignore"):  # what float32 does not hold is infinite in the graph
            found = answer(interface, rows)
        return agreement({"answer": found}, {"answer": want}).is_exact
    except (TvmoptError, TypeError, ValueError):  # the graph's refusal, or no such number
        return False
