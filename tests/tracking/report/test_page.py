"""Page of a search: complete, self-contained, and every text escaped."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.tracking.records import RECORDS, SPACE
from tvmopt.tracking.report.charts import Marked, draw
from tvmopt.tracking.report.page import page
from tvmopt.tracking.report.sentences import CAPTIONS
from tvmopt.tracking.report.trials import table

EVIL = """"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}"""


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data) -> None:
        self.text += data


def _read(text: str) -> _Tags:
    tags = _Tags()
    tags.feed(text)
    return tags


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("charts")
    draw(RECORDS, SPACE, Marked((5, 6), 6, True, 0.01), folder)
    return [folder / f"{name}.png" for name in CAPTIONS]


def test_the_page_shows_all_and_escapes_what_it_was_given(pictures) -> None:
    evil = [replace(RECORDS[3], error=EVIL), *RECORDS]
    tags = _read(page(f"a & {EVIL}", [EVIL], {EVIL: EVIL}, table(evil, 6), pictures))
    names = [name for name, _ in tags.seen]
    assert "script" not in names and names.count("img") == 3 and names.count("tr") == 8
    assert [a.get("class") for n, a in tags.seen if n == "tr"].count("winner") == 1
    assert tags.text.count(EVIL) == 6  # two titles, the sentence, name and value, the error
    assert not [a for n, a in tags.seen if n == "img" and "onerror" in a]


def test_the_page_needs_nothing_beside_it_and_fits_a_phone(pictures) -> None:
    text = page("net", ["why"], {}, table(RECORDS, 6), pictures)
    tags = _read(text)
    assert "http" not in text and not re.search(r"(src|href)=\"(?!data:)", text)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in (
        tags.seen
    )
    places = [n for n, a in tags.seen if n == "table" or a.get("class") == "scroll"]
    assert places == ["div", "table"]  # a wide table scrolls in its own box
    for name, attributes in tags.seen:
        if name == "img":
            assert attributes["alt"] in CAPTIONS.values()


def test_a_page_without_charts_has_no_heading_for_them() -> None:
    assert "Charts" not in page("net", [], {}, table(RECORDS, -1), [])
