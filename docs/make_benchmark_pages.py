"""Write the benchmark pages from JSON results: ``python -m docs.make_benchmark_pages``.

Input is ``benchmarks/results/*.json``; one file is one page. Output is ``docs/benchmarks/*.md``,
the chart ``docs/benchmarks/networks.svg``, and the tables between markers of the overview page and
of ``README.md``. No number is computed here: cells are printed as the results hold them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from docs.make_drawings import Drawing

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = Path(__file__).parent / "benchmarks"
README = ROOT / "README.md"
_HEAD = "| what | against | tvmopt | measured |\n| --- | --- | --- | --- |"
_NETWORKS = {"Xeon": "2026-11-22-fast-tuner", "EPYC": "2026-11-22-fast-tuner-epyc"}
_RATIO = "tuned / best peer"


@dataclasses.dataclass(frozen=True)
class Table:
    """One table of a result file.

    Attributes:
        title: Its heading.
        command: Command that printed it; empty if there are several.
        commit: Commit that was measured; empty where the record does not tell.
        notes: Paragraphs below the heading.
        columns: Heads.
        rows: Cells, as printed by the benchmark.
    """

    title: str
    command: str
    commit: str
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, name: str) -> list[str]:
        """Return the cells below one head."""
        index = self.columns.index(name)
        return [row[index] for row in self.rows]


@dataclasses.dataclass(frozen=True)
class Result:
    """One result file.

    Attributes:
        stem: Its name without the ending; also the page's.
        title: Heading of the page.
        date: Day of the measurement.
        machine: What was measured on.
        versions: Versions of the packages.
        about: Paragraphs on method.
        record: The dated record, for readers of the repository.
        headlines: Rows of the overview: ``place`` in it, ``what``, ``against``, ``result``.
        tables: The tables.
    """

    stem: str
    title: str
    date: str
    machine: str
    versions: Mapping[str, str]
    about: tuple[str, ...]
    record: str
    headlines: tuple[Mapping[str, Any], ...]
    tables: tuple[Table, ...]


def read_results(folder: Path = RESULTS) -> list[Result]:
    """Read all result files, newest first.

    Raises:
        ValueError: When a row has another number of cells than its table has heads.
    """
    return [_read(path) for path in sorted(folder.glob("*.json"), reverse=True)]


def _read(path: Path) -> Result:
    data: dict[str, Any] = json.loads(path.read_text())
    tables = [
        Table(
            one["title"],
            one["command"],
            one["commit"],
            tuple(one["notes"]),
            tuple(one["columns"]),
            tuple(map(tuple, one["rows"])),
        )
        for one in data.pop("tables")
    ]
    for table in tables:
        for row in table.rows:
            if len(row) != len(table.columns):
                raise ValueError(
                    f"each row must have {len(table.columns)} cells, but one of {table.title!r} in "
                    f"{path.name} has {len(row)}: {row[0]!r}"
                )
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return Result(stem=path.stem, tables=tuple(tables), **fields)


def page(result: Result) -> str:
    """Return the Markdown of a result's page."""
    return "\n".join(_lines(result)) + "\n"


def _lines(result: Result) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    yield "---\nhide-toc: true\n---\n"
    yield f"# {result.title}\n"
    yield f"Measured on {result.date}\n: {result.machine}\n"
    yield f"Versions\n: {versions}\n"
    yield f"Record\n: `{result.record}` in the repository\n"
    for text in result.about:
        yield f"{text}\n"
    for table in result.tables:
        yield f"## {table.title}\n"
        commit = f" Commit {table.commit}." if table.commit else ""
        if table.command:
            yield f"`{table.command}`.{commit}\n"
        for text in table.notes:
            yield f"{text}\n"
        yield ":::{table}\n:class: measured\n"
        yield _row(table.columns)
        yield "|" + " --- |" * len(table.columns)
        yield from map(_row, table.rows)
        yield ":::\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def headlines(results: Sequence[Result], folder: str) -> str:
    """Return the overview table, with links to the pages in ``folder``."""
    found = [(one["place"], one, result) for result in results for one in result.headlines]
    rows = [
        f"| {one['what']} | {one['against']} | {one['result']} | "
        f"[{result.date}]({folder}{result.stem}.md) |"
        for _, one, result in sorted(found, key=lambda row: row[0])
    ]
    return "\n".join([_HEAD, *rows])


def listing(results: Sequence[Result]) -> str:
    """Return the table of all pages."""
    rows = [f"| [{one.title}]({one.stem}.md) | {one.date} | {one.machine} |" for one in results]
    return "\n".join(["| page | measured on | machine |\n| --- | --- | --- |", *rows])


def chart(results: Sequence[Result]) -> str:
    """Return the chart of the networks on both CPUs as SVG."""
    by_stem = {result.stem: result for result in results}
    tables = {name: by_stem[stem].tables[0] for name, stem in _NETWORKS.items()}
    models = tables["Xeon"].column("model")
    left, scale, step = 140.0, 320.0, 40.0
    drawing = Drawing(int(86 + step * len(models)), "tvmopt's time over the best peer's")
    drawing.text(left, 26, "tvmopt's time / best peer's (shorter is faster)")
    for number, model in enumerate(models):
        top = 44 + step * number
        drawing.text(left - 8, top + 18, model, "small end")
        for place, (name, table) in enumerate(tables.items()):
            ratio = dict(zip(table.column("model"), table.column(_RATIO), strict=True))[model]
            width, y = scale * float(ratio), top + 15 * place
            kind = ("box", "good")[place]
            drawing.parts.append(
                f'<rect class="{kind}" x="{left}" y="{y}" width="{width:.1f}" height="13"/>'
            )
            drawing.text(left + width - 5, y + 11, f"{ratio} {escape(name)}", "small end")
    bottom = 44 + step * len(models)
    line = f'x1="{left + scale}" x2="{left + scale}" y1="36" y2="{bottom}"'
    drawing.parts.insert(0, f'<line class="line" stroke-dasharray="4 4" {line}/>')
    drawing.text(left + scale, bottom + 18, "1: as fast as the best peer", "small end")
    return drawing.svg()


def between(text: str, name: str, new: str) -> str:
    """Return ``text`` with the lines between ``<!-- name -->`` and its end replaced by ``new``.

    Raises:
        ValueError: When the two markers are not there once each.
    """
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the text must hold {begin} and {end} once each, but it does not")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{new}\n{end}{after}"


def files() -> dict[Path, str]:
    """Return the text of every file that this script writes."""
    results = read_results()
    index = PAGES / "index.md"
    overview = between(index.read_text(), "headlines", headlines(results, ""))
    return {
        **{PAGES / f"{result.stem}.md": page(result) for result in results},
        index: between(overview, "pages", listing(results)),
        PAGES / "networks.svg": chart(results),
        README: between(README.read_text(), "headlines", headlines(results, "docs/benchmarks/")),
    }


def main() -> None:
    """Write all files, and remove pages whose results are gone."""
    written = files()
    for path in PAGES.glob("*.md"):
        if path not in written:
            path.unlink()
    for path, text in written.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
