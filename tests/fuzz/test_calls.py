"""No values of a call crash a compiled model, hang it, or end in a traceback."""

from __future__ import annotations

import pytest

from .commands import judged_by

_SAMPLE = (
    "test_scatternd_add", "test_gather_elements_1", "test_div_int8",
)  # fmt: skip


def _check(records: list[dict]) -> None:
    # A call may ask a part that runs in ONNX Runtime for memory (SECURITY.md), but not hang.
    calls = [r for r in records if (r["kind"], r["phase"]) == ("limit", "call")]
    hangs = [r for r in calls if r["text"].startswith("it had not ended")]
    bad = [r for r in records if r["kind"] not in ("refused", "right", "limit")] + hangs
    assert not bad, "\n".join(f"{r['name']}: {r}" for r in bad)


@pytest.mark.timeout(280)
def test_a_sample() -> None:
    records = judged_by(["tests.fuzz.calls", "--only", ",".join(_SAMPLE)], seconds=270)
    assert len(records) == len(_SAMPLE)
    assert all(record["phase"] == "call" for record in records)
    _check(records)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_cases() -> None:
    parts = [["tests.fuzz.calls", "--part", f"{part}/2"] for part in (1, 2)]
    records = judged_by(*parts, seconds=3500)
    assert sum(record["phase"] == "call" for record in records) > 300
    _check(records)
