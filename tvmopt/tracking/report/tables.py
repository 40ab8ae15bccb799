"""Tables: the comparison of variants, and any table as text, Markdown and CSV."""

from __future__ import annotations

import io
from collections.abc import Sequence

from tvmopt.markdown import table_row
from tvmopt.spreadsheet import write_csv

_HEADERS = (
    "variant",
    "p50 ms",
    "95% interval",
    "accuracy",
    "size MB",
    "vs ONNX Runtime",
    "vs untuned TVM",
)


def comparison(rows: Sequence[dict[str, str]], names: dict[str, str]) -> list[list[str]]:
    """Cells of the comparison table, header first.

    Args:
        rows: Rows of the evaluate stage's table.
        names: What to call each variant.
    """
    table = [list(_HEADERS)]
    for row in rows:
        low, high = row["latency_ms_ci_low"], row["latency_ms_ci_high"]
        reference, untuned = row["speedup_vs_onnxruntime"], row["speedup_vs_untuned"]
        table.append(
            [
                names.get(row["variant"], row["variant"]),
                _number(row["latency_ms_p50"]) if row["latency_ms_p50"] else "-",
                f"{_number(low)} - {_number(high)}" if low else "-",
                f"{float(row['accuracy']):.4f}" if row["accuracy"] else "-",
                f"{float(row['bytes']) / 1e6:.2f}",
                f"{_number(reference)}x" if reference else "-",
                f"{_number(untuned)}x" if untuned else "-",
            ]
        )
    return table


def as_text(table: Sequence[Sequence[str]]) -> str:
    """Columns padded for a terminal."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)) for r in table]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(line.rstrip() for line in lines)


def as_markdown(table: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    head, *body = map(table_row, table)
    return "\n".join([head, "|" + " --- |" * len(table[0]), *body]) + "\n"


def as_csv(table: Sequence[Sequence[str]]) -> str:
    """A table as CSV, which a spreadsheet program shows as text."""
    out = io.StringIO()
    write_csv(out, table[0], table[1:])
    return out.getvalue()


def _number(text: str) -> str:
    return f"{float(text):.3g}" if float(text) < 1000 else f"{float(text):.0f}"
