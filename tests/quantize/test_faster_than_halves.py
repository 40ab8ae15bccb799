"""Maps with int8 layers that are predicted to lose less than all layers in a 16-bit float."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tvmopt.quantize import layer_dtypes
from tvmopt.quantize.dtype_map import DtypeMap

Choice = tuple[int, ...]
# Seconds and predicted loss of each choice; (9, 9) is all layers in bfloat16.
CHOICES = {
    (1, 1): (1.0, 0.8), (1, 2): (2.0, 0.4), (2, 1): (3.0, 0.15), (2, 2): (3.5, 0.05),
    (9, 9): (4.0, 0.2), (3, 3): (5.0, 0.01),
}  # fmt: skip
HALVES = (9, 9)


@dataclasses.dataclass
class FakeMeasurement:
    """Knows the choices; assumes those that lose at most ``sound``."""

    sound: float = 0.0
    allowed: float = 0.5
    found: list[Any] = dataclasses.field(default_factory=list)
    tried: list[Choice] = dataclasses.field(default_factory=list)

    def seconds(self, choice: Choice) -> float:
        return CHOICES[choice][0]

    def predicted_loss(self, choice: Choice) -> float:
        return CHOICES[choice][1]

    def is_known(self, choice: Choice) -> bool:
        return choice == HALVES

    def accept_halves(self, deadline: float) -> bool:
        return True

    def allowed_loss(self, part: float, *, careful: bool) -> float:
        return max(0.2, part * self.allowed)  # at least that of the map that holds

    def assume(self, choice: Choice, deadline: float) -> bool:
        self.tried.append(choice)
        return self.predicted_loss(choice) <= self.sound

    def offer(self, choice: Choice, deadline: float) -> Any:
        self.tried.append(choice)
        return SimpleNamespace(predicted_loss=self.predicted_loss(choice))


@pytest.fixture
def measure() -> FakeMeasurement:
    return FakeMeasurement()


def test_all_that_are_faster_are_candidates(measure: Any) -> None:
    layers: Sequence[Any] = [SimpleNamespace(half=9), SimpleNamespace(half=9)]
    found = layer_dtypes._before_halves([*CHOICES], layers, measure, 0.0)
    assert found == [(1, 1), (1, 2), (2, 1), (2, 2), HALVES]


@pytest.mark.parametrize(
    ("sound", "tried", "is_assumed"),
    [
        (0.4, [(1, 2)], True),
        (0.15, [(1, 2), (2, 1)], True),
        (0.05, [(1, 2), (2, 1), (2, 2)], True),
        (0.01, [(1, 2), (2, 1), (2, 2)], False),
    ],
)
def test_each_assumed_map_loses_half_of_the_broken_one(
    measure: Any, sound: float, tried: list[Choice], is_assumed: bool
) -> None:
    measure.sound = sound
    candidates = [(1, 1), (1, 2), (2, 1), (2, 2), HALVES]
    assert layer_dtypes._assumed(candidates, measure, 0.0) == is_assumed
    assert measure.tried == tried


def test_what_follows_is_not_faster_than_the_chosen_map(measure: Any) -> None:
    """An unmeasured map that is faster would take the place of the one that was measured."""
    chosen = DtypeMap((0, 1), ("bfloat16",) * 2, 4.0, 0.2, 1.0, None, 0.0, 40, True)
    measure.found = [chosen]
    layer_dtypes._measure_further([*CHOICES], measure, 0.0)
    assert measure.tried == [(3, 3)]
