"""CSV that a spreadsheet program shows as text: no cell of a model's names becomes a formula."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import Any, TextIO

# Excel, LibreOffice and Google Sheets take a cell that begins so for a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write_csv(file: TextIO, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a header line and ``rows``; cells like formulas begin with an apostrophe."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([as_text(cell) for cell in header])
    writer.writerows([as_text(cell) for cell in row] for row in rows)


def as_text(cell: Any) -> Any:
    """``cell``, with an apostrophe before a text that a spreadsheet would compute.

    Numbers, and texts that are numbers or a single character, stay as they are.
    """
    if not isinstance(cell, str) or len(cell) < 2 or not cell.startswith(_FORMULA_STARTS):
        return cell
    try:
        float(cell)
    except ValueError:
        return "'" + cell
    return cell
