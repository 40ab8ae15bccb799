"""Markdown as GitHub and MLflow render it."""

from __future__ import annotations

from collections.abc import Iterable


def table_row(cells: Iterable[str]) -> str:
    """One row of a table; bars within a cell are escaped, so that they end no cell."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
