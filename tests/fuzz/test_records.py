"""Mutated tuning databases are rejected in one line, or give a library with right results."""

from __future__ import annotations

from collections import Counter

import pytest

from .commands import judged_by


def _check(records: list[dict], count: int) -> None:
    assert len(records) == count
    bad = [r for r in records if r["kind"] not in ("refused", "right")]
    assert not bad, "\n".join(f"{r['number']} ({r['story']}): {r}" for r in bad)
    kinds = Counter(r["kind"] for r in records)
    assert min(kinds["refused"], kinds["right"]) > count // 6


@pytest.mark.timeout(280)
def test_twenty_mutants() -> None:
    """Build with one mutant in four; copy, replay and apply the others."""
    command = ["tests.fuzz.records", "20", "--seed", "27", "--whole", "0.25"]
    _check(judged_by(command, seconds=270), 20)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("granularity", ["subgraph", "operator"])
def test_a_thousand_mutants(granularity: str) -> None:
    command = ["tests.fuzz.records", "1000", "--seed", "28", "--granularity", granularity]
    _check(judged_by(command, seconds=1700), 1000)
