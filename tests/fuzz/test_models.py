"""Mutated ONNX models give a one-line error or right results; no crash, hang or traceback."""

from __future__ import annotations

from collections import Counter

import pytest

from .commands import judged_by

#: Seed of the series of mutants.
_SEED = 27
_A_PART = 500


def _check(records: list[dict], count: int) -> None:
    assert len(records) == count
    bad = [r for r in records if r["kind"] not in ("refused", "right", "limit")]
    assert not bad, "\n".join(f"{r['number']} ({r['story']}): {r}" for r in bad)
    kinds = Counter(r["kind"] for r in records)
    assert kinds["refused"] > count // 4
    assert kinds["right"] > count // 10


@pytest.mark.timeout(280)
def test_thirty_mutants() -> None:
    """Load, prepare and import mutants; one in eight runs through all stages."""
    command = ["tests.fuzz.models", "0", "30", "--seed", str(_SEED), "--whole", "0.12"]
    _check(judged_by(command, seconds=270), 30)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 10_000, 2 * _A_PART))
def test_ten_thousand_mutants(first: int) -> None:
    """Run all stages, with two processes at a time."""
    commands = [
        ["tests.fuzz.models", str(at), str(at + _A_PART), "--seed", str(_SEED + 1)]
        for at in (first, first + _A_PART)
    ]
    _check(judged_by(*commands, seconds=3500), 2 * _A_PART)
