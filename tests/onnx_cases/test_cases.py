"""ONNX's node tests and small models: which pass by compilation is a list in this folder.

``python -m tests.onnx_cases.listed FILES`` writes it from the JSON files of the runner.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.onnx_cases.cases import node_cases, small_models
from tests.onnx_cases.listed import differences, read_list

# Of the default run: every case of this many, so that each kind of operator has a chance.
_STEP = 199
# The package has 1,795 cases; making them takes half of a minute, so the sample does it once.
_AT_LEAST = 1700


def _outcomes(part: str, folder: Path) -> list[dict[str, str]]:
    """Run cases in a fresh process: its forked children inherit no thread of another test."""
    file = folder / "outcomes.json"
    command = [sys.executable, "-m", "tests.onnx_cases.run", "--part", part, "--json", str(file)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(file.read_text())


def test_a_sample_passes_or_is_listed(tmp_path) -> None:
    found = _outcomes(f"1/{_STEP}", tmp_path)
    assert len(found) >= _AT_LEAST // _STEP
    assert differences(found, read_list()) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_case_passes_or_is_listed(tmp_path) -> None:
    names = {case.name for case in [*node_cases(), *small_models()]}
    assert set(read_list()) <= names
    assert len(names) >= _AT_LEAST
    assert differences(_outcomes("1/1", tmp_path), read_list()) == []


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
