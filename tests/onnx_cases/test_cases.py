"""ONNX's node tests and small models: which pass by compilation is a list in this folder.

``python -m tests.onnx_cases.listed FILES`` writes it from the JSON files of the runner.
"""

from __future__ import annotations

import pytest

from tests.onnx_cases.cases import node_cases, small_models
from tests.onnx_cases.listed import differences, read_list
from tests.onnx_cases.run import outcomes

# Of the default run: every case of this many, so that each kind of operator has a chance.
_STEP = 67


def test_a_sample_passes_or_is_listed() -> None:
    cases = [*node_cases(), *small_models()][::_STEP]
    assert differences(outcomes(cases), read_list()) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_case_passes_or_is_listed() -> None:
    cases = [*node_cases(), *small_models()]
    assert set(read_list()) <= {case.name for case in cases}
    assert differences(outcomes(cases), read_list()) == []


def test_a_case_that_leaves_or_enters_the_list_is_named() -> None:
    listed = {"b": {"kind": "refused", "why": "no shape"}, "c": {"kind": "fallback", "why": ""}}
    found = [
        {"name": "a", "kind": "refused", "reason": "new"},
        {"name": "b", "kind": "right", "reason": ""},
        {"name": "c", "kind": "fallback", "reason": ""},
        {"name": "d", "kind": "foreign", "reason": ""},
        {"name": "e", "kind": "constant", "reason": ""},
    ]
    assert differences(found, listed) == [
        "a: was compiled, is refused (new)",
        "b: was refused, is compiled",
    ]
