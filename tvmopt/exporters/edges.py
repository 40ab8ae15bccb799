"""Find out which values a source refuses: missing ones, infinities, unknown categories.

The source itself is asked, with one row in which one column is changed. A compiled model computes
something for any value; the interface lets it refuse what its source refuses. What the source
accepts, but the exported graph answers in another way, is refused as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmopt.exporters.compare import agreement
from tvmopt.exporters.exported import Exported
from tvmopt.runtime.interface import SourceColumn, SourceInterface

_UNKNOWN_TEXT, _UNKNOWN_NUMBER = "\ufffdunknown", 987654321.0
Answer = Callable[[SourceInterface, Any], np.ndarray]


def with_edges(
    interface: SourceInterface,
    exported: Exported,
    table: Any,
    answer: Answer,
    categories: dict[str, tuple[str | float, ...]],
) -> SourceInterface:
    """Return the interface with what each column accepts.

    Args:
        interface: The interface.
        exported: The export, with the source's ``predict``.
        table: A pandas table with at least one row that the source accepts.
        answer: Gives the answer of the exported graph for a table, without checks.
        categories: Categories that an encoder knows, by column; other values may be refused.
    """
    columns = []
    for column in interface.columns:
        floats = not column.text and table[column.name].dtype.kind == "f"
        changes: dict[str, Any] = {}
        if floats:
            changes = {"missing": np.nan, "infinite": np.inf}
        elif column.text:
            changes = {"missing": np.nan, "none": None}
        accepted: dict[str, Any] = {
            name: _accepts(interface, exported, table, column, value, answer)
            for name, value in changes.items()
        }
        known = categories.get(column.name)
        if known is not None or column.text:
            value = _UNKNOWN_TEXT if column.text else _UNKNOWN_NUMBER
            if not _accepts(interface, exported, table, column, value, answer):
                accepted["allowed"] = known if known is not None else interface.words
        columns.append(dataclasses.replace(column, **accepted))
    return dataclasses.replace(interface, columns=tuple(columns))


def _accepts(
    interface: SourceInterface,
    exported: Exported,
    table: Any,
    column: SourceColumn,
    value: Any,
    answer: Answer,
) -> bool:
    """Return whether the source answers a row with ``value`` in a column, and the graph alike."""
    row = table.iloc[:1].copy()
    dtype = row[column.name].dtype
    row[column.name] = np.array([value], object).astype(object if column.text else dtype)
    try:
        want = np.asarray(exported.predict(row))
    except Exception:  # the source's refusal, of whatever class
        return False
    try:
        return agreement({"answer": answer(interface, row)}, {"answer": want}).is_exact
    except Exception:  # the graph's refusal
        return False
