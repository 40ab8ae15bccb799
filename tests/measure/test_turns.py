"""In which order contenders take turns."""

from __future__ import annotations

from tvmopt.measure.turns import rotated


def test_each_is_the_first_in_turn() -> None:
    assert [rotated("abc", turn) for turn in range(4)] == [
        ["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]
    ]  # fmt: skip


def test_one_and_none() -> None:
    assert rotated(["a"], 5) == ["a"]
    assert rotated([], 5) == []
