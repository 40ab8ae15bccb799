"""The comparison with a champion measures accuracy as the search does."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.search_champion import new_meter
from tvmopt.compare import Tolerance
from tvmopt.evaluate.dataset import Dataset
from tvmopt.frontend.class_scores import ClassScores
from tvmopt.stages.signature import Signature

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("maps", "drops"), [((-1, 0), False), ((), True)])
def test_values_of_a_detector_are_weighted_with_its_scores(tmp_path, maps, drops) -> None:
    """The error is where the float model's score is 0."""
    scores = ClassScores(True, "Sigmoid computes output 'heat'", maps=maps)
    Signature((), (), "normal", Tolerance(0.1, "absolute"), 0.9, class_scores=scores).write(
        tmp_path
    )
    meter = new_meter(
        Signature.read(tmp_path), Dataset((), {"x": np.zeros((8, 1))}, None, stacked=True)
    )
    for _ in range(8):
        heat = np.abs(RNG.standard_normal((1, 1, 4, 4)))
        heat[..., 2:] = 0
        values = RNG.standard_normal((1, 2, 4, 4))
        got = values.copy()
        got[..., 2:] += 1
        meter.add([heat, got], [heat, values], None, 1)
    found = meter.result()
    assert (found.drop > 0.1) == drops
    assert dataclasses.replace(found, accuracy=1.0).drop == 0.0
