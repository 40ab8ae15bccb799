"""Sphinx directives for tables that are read from the package at build time.

The parameters of an entry point, and the dimensions of the search::

    ```{parameter-table} main
    ```

    ```{dimension-table}
    ```

:func:`read_rows` is the only function that knows how the package stores its parameters.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tvmopt.parameters import ENTRY_POINTS
from tvmopt.search.dimension import Dimension
from tvmopt.search.dimensions import DIMENSIONS


@dataclasses.dataclass(frozen=True)
class Row:
    """One parameter of an entry point.

    Attributes:
        name: Its name.
        kind: Name of its type: ``str``, ``int``, ``float`` or ``bool``.
        default: Its default as one types it; empty when it has none that can be typed.
        is_required: Whether it must be given.
        meaning: One sentence.
    """

    name: str
    kind: str
    default: str
    is_required: bool
    meaning: str


def read_rows(entry: str) -> list[Row]:
    """Return the parameters of entry point ``entry``, in the order of its command line."""
    return [
        Row(p.name, p.kind.__name__, _as_typed(p.default), p.default is None, p.help)
        for p in ENTRY_POINTS[entry]
    ]


def _as_typed(default: Any) -> str:
    if default is None:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


class ParameterTable(SphinxDirective):
    """The directive; its argument is the name of an entry point."""

    required_arguments = 1
    final_argument_whitespace = False
    has_content = False
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        entry = self.arguments[0]
        if entry not in ENTRY_POINTS:
            known = ", ".join(ENTRY_POINTS)
            raise self.error(
                f"parameter-table must name an entry point ({known}), but got {entry!r}"
            )
        rows = [_line(nodes.literal(text=row.name), *_meaning(row)) for row in read_rows(entry)]
        return [_table("parameter", rows)]


class DimensionTable(SphinxDirective):
    """The directive for the dimensions of the search; it takes no argument."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        rows = [_line(nodes.literal(text=d.name), *_description(d)) for d in DIMENSIONS]
        return [_table("dimension", rows)]


def _description(dimension: Dimension) -> list[nodes.Node]:
    found: list[nodes.Node] = [nodes.Text(dimension.help)]
    if dimension.of:
        values = ", ".join(dimension.applies_to)
        found.append(nodes.Text(f"; one for each {dimension.of} of {values}"))
    found.append(nodes.Text(". In the YAML file: "))
    for number, key in enumerate(dimension.keys):
        found += [nodes.Text(", ")] if number else []
        found.append(nodes.literal(text=key))
    return found


def _table(first: str, rows: list[nodes.row]) -> nodes.table:
    table = nodes.table(classes=["parameters"])
    group = nodes.tgroup(cols=2)
    table += group
    group += [nodes.colspec(colwidth=30), nodes.colspec(colwidth=70)]
    head, body = nodes.thead(), nodes.tbody()
    group += [head, body]
    head += _line(nodes.Text(first), nodes.Text("meaning"))
    body += rows
    return table


def _meaning(row: Row) -> list[nodes.Node]:
    found: list[nodes.Node] = [nodes.Text(f"{row.meaning}. ")]
    if row.is_required:
        found.append(nodes.strong(text="Required"))
    elif row.default:
        found += [nodes.Text("Default: "), nodes.literal(text=row.default)]
    else:
        return [*found, nodes.emphasis(text=f"({row.kind})")]
    return [*found, nodes.Text(" "), nodes.emphasis(text=f"({row.kind})")]


def _line(first: nodes.Node, *others: nodes.Node) -> nodes.row:
    row = nodes.row()
    for cell in ([first], list(others)):
        entry = nodes.entry()
        paragraph = nodes.paragraph()
        paragraph += cell
        entry += paragraph
        row += entry
    return row


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("parameter-table", ParameterTable)
    app.add_directive("dimension-table", DimensionTable)
    return {"parallel_read_safe": True}
