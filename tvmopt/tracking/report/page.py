"""Report of a search as one self-contained HTML page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2

from tvmopt.tracking.report.sentences import CAPTIONS, TABLE_NOTES

_TEMPLATE = "search_page.html"
# What a reader compares; a phone shows no more without scrolling.
_FIRST = ("trial", "status", "p50 ms", "speedup", "accuracy drop", "dtype")
_KINDS = {"winner": "winner", "not feasible": "infeasible"}


def page(
    title: str,
    why: Sequence[str],
    facts: Mapping[str, str],
    cells: Sequence[Sequence[str]],
    pictures: Sequence[Path],
) -> str:
    """Return the page; every text is escaped.

    Args:
        title: Its heading.
        why: What won and why, a sentence each.
        facts: Parameters of the search, and the machine that measured.
        cells: Table of the trials, header first.
        pictures: PNG files to embed.
    """
    order = sorted(range(len(cells[0])), key=lambda place: _rank(cells[0][place]))
    head, *body = [[row[place] for place in order] for row in cells]
    status = head.index("status")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template(_TEMPLATE).render(
        title=title,
        why=why,
        head=head,
        rows=[{"kind": _kind(row[status]), "cells": row} for row in body],
        notes=TABLE_NOTES,
        pictures=[
            {
                "caption": CAPTIONS[path.stem],
                "data": base64.b64encode(path.read_bytes()).decode(),
            }
            for path in pictures
        ],
        facts=facts,
    )


def _rank(column: str) -> int:
    return _FIRST.index(column) if column in _FIRST else len(_FIRST)


def _kind(status: str) -> str:
    return "failed" if status.startswith("FAILED") else _KINDS.get(status, "")
