"""Report of a search as one self-contained HTML page."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1200px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}
table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}
th,td{border-bottom:1px solid #ddd;padding:.3em .7em;text-align:left;white-space:nowrap}
td:last-child{white-space:normal;min-width:20em}
tr.winner{background:#e8f5e9;font-weight:600}tr.failed{color:#a33}
img{max-width:100%;margin:.5em 0}dt{font-weight:600}dd{margin:0 0 .3em 0}
dl{display:grid;grid-template-columns:max-content auto;gap:0 1em}
"""


def page(
    title: str,
    why: Sequence[str],
    facts: Mapping[str, str],
    cells: Sequence[Sequence[str]],
    pictures: Sequence[Path],
) -> str:
    """Return the page.

    Args:
        title: Its heading.
        why: What won and why, a sentence each.
        facts: What the search was asked, and of what machine the numbers are.
        cells: Table of the trials, header first.
        pictures: PNG files to embed.
    """
    head, *body = cells
    status = head.index("status")
    rows = "".join(
        f'<tr class="{_kind(row[status])}">{"".join(f"<td>{_text(c)}</td>" for c in row)}</tr>'
        for row in body
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_text(title)}</title>'
        f"<style>{_STYLE}</style><h1>{_text(title)}</h1><ul>"
        + "".join(f"<li>{_text(line)}</li>" for line in why)
        + "</ul><h2>Trials</h2><table><tr>"
        + "".join(f"<th>{_text(cell)}</th>" for cell in head)
        + f"</tr>{rows}</table><h2>Pictures</h2>"
        + "".join(_image(path) for path in pictures)
        + "<h2>What was asked</h2><dl>"
        + "".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in facts.items())
        + "</dl></html>\n"
    )


def _kind(status: str) -> str:
    return "winner" if status == "winner" else "failed" if status.startswith("FAILED") else ""


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{_text(path.stem)}" src="data:image/png;base64,{data}">'


def _text(value: str) -> str:
    return html.escape(value)
