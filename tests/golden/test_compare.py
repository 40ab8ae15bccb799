"""The comparison of two records: what differs, what is renamed, what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from .compare import Renames, differences, main
from .entries import Entry
from .record import combined, record, write

BEFORE = [
    Entry("hopper", "a", {"cuda": "send_four_f32(x);\nfoo(foobar);"}),
    Entry("hopper", "b", {"cuda": "same", "ranked": "1\n2\n3"}),
]
AFTER = [
    Entry("hopper", "a", {"cuda": "store_four_f32(x);\nbar(foobar);"}),
    Entry("hopper", "b", {"cuda": "same", "ranked": "1\n3\n2"}),
    Entry("search", "c", {"cuda": "new"}),
]


@pytest.mark.parametrize(
    ("lines", "before", "after"),
    [
        ("foo=bar", "foo foobar a.foo(foo2)", "bar foobar a.bar(foo2)"),
        ("send_*=store_*", "send_four_f32 resend_four", "store_four_f32 resend_four"),
        ("*_slot_*=*_stage_*\n\nx = y\n", "a_slot_b x", "a_stage_b y"),
    ],
)
def test_identifiers_are_renamed(lines: str, before: str, after: str) -> None:
    assert Renames(lines)(before) == after


def test_parts_that_differ_are_found() -> None:
    before, after = record(BEFORE), record(AFTER)
    wanted = [("hopper", "a", "cuda"), ("hopper", "b", "ranked"), ("search", "c", "new")]
    assert differences(before, after) == wanted
    assert differences(after, before)[-1] == ("search", "c", "missing")
    brief = {g: {n: combined(v) for n, v in of.items()} for g, of in before.items()}
    assert [part for *_, part in differences(brief, after)] == ["some part"] * 2 + ["new"]
    assert not differences(brief, before)


def _write(folder: Path, name: str, found: Sequence[Entry]) -> tuple[str, str]:
    texts, file = folder / f"{name}_texts", folder / f"{name}.json"
    write(file, {"versions": {}}, record(found, texts))
    return str(file), str(texts)


def test_renamed_texts_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, old = _write(tmp_path, "before", BEFORE)
    after, new = _write(tmp_path, "after", AFTER[:2])
    renames = tmp_path / "renames.txt"
    renames.write_text("send_*=store_*\nfoo=bar\n")
    assert main([before, after, "--texts", old, new, "--rename", str(renames)]) == 1
    said = capsys.readouterr().out
    assert "hopper: b: ranked" in said and "+3" in said
    assert "2 entries, 1 differences left, 1 equal after renames" in said
    assert main([before, before]) == 0
