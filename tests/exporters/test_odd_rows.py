"""Odd calls of exported models: the source's answer, or one clear error."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas
import pytest

pytest.importorskip("skl2onnx", reason="the extra sklearn is not installed")
pytest.importorskip("lightgbm", reason="lightgbm is not installed")
from benchmarks.odd_rows import exported_pair, odd_cases
from benchmarks.odd_sources import SOURCES
from benchmarks.odd_verdicts import (
    BOTH_REFUSE,
    DIFFERENT,
    FAULTS,
    ONLY_OURS,
    REFUSED,
    SAME,
    UNCLEAR,
    Outcome,
    verdict,
)

# With the number of cases that the source answers and the compiled model refuses.
_MODELS = {"strict_pipeline": 0, "random_forest": 0}


@pytest.mark.slow  # servers of three kinds; tests/tracking/test_serve_rows.py has one
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    # Both have the same cases; the pipeline refuses more of them.
    "name",
    ["strict_pipeline", pytest.param("random_forest", marks=pytest.mark.slow)],
)
def test_odd_calls(tmp_path, name):
    source = SOURCES[name]()
    cases = list(odd_cases(exported_pair(source, tmp_path), source))
    faults = [
        f"{case.through}, {case.name}: {case.verdict}" for case in cases if case.verdict in FAULTS
    ]
    assert faults == []
    counts = Counter((case.through, case.verdict) for case in cases)
    for through in ("predict", "mlflow serve", "tvmopt serve"):
        assert counts[through, SAME] >= 40
        assert counts[through, BOTH_REFUSE] >= 30
        assert counts[through, REFUSED] == _MODELS[name]


_ARRAY = np.array([1.0, 2.0])


@pytest.mark.parametrize(
    ("ours", "source", "found"),
    [
        (Outcome(_ARRAY), Outcome(_ARRAY + 1e-7), SAME),
        (Outcome(_ARRAY), Outcome(_ARRAY + 1e-3), DIFFERENT),
        (Outcome(_ARRAY), Outcome(_ARRAY.astype("float32")), DIFFERENT),
        (Outcome(_ARRAY), Outcome(_ARRAY[None]), DIFFERENT),
        (Outcome(_ARRAY), Outcome([1.0, 2.0]), DIFFERENT),
        (Outcome(b'{"predictions": [1]}'), Outcome(b'{"predictions": [ 1 ]}'), SAME),
        (Outcome(b'{"predictions": [1]}'), Outcome(b'{"predictions": [0]}'), DIFFERENT),
        (
            Outcome(pandas.DataFrame([1.0], index=["a"])),
            Outcome(pandas.DataFrame([1.0], index=["b"])),
            DIFFERENT,
        ),
        (Outcome(_ARRAY), Outcome(None, "no"), ONLY_OURS),
        (Outcome(None, "x must be 1, but is 2"), Outcome(None, "no"), BOTH_REFUSE),
        (Outcome(None, "x must be 1, but is 2"), Outcome(_ARRAY), REFUSED),
        (Outcome(None, "Traceback:\n  file"), Outcome(None, "no"), UNCLEAR),
        (Outcome(None, "two\nlines"), Outcome(None, "two\nlines"), BOTH_REFUSE),
    ],
)
def test_verdicts(ours, source, found):
    assert verdict(ours, source) == found
