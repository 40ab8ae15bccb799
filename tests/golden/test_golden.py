"""What the kernel half of the package emits and ranks is what is recorded.

``TVMOPT_UPDATE_GOLDEN=1`` writes the record instead, for a change that is meant.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .compare import differences
from .entries import entries, kernel_source
from .hopper import READABLE
from .record import record, write

FOLDER = Path(__file__).parent
QUICK = FOLDER / "quick.json"
UPDATE = os.environ.get("TVMOPT_UPDATE_GOLDEN") == "1"
_HOW = "TVMOPT_UPDATE_GOLDEN=1 records it where that is meant; CONTRIBUTING.md says how to compare"
# The last line of what TVM writes before every kernel.
_PREAMBLE_END = "operator uint64_t() const noexcept { return desc_; }\n};\n"


@pytest.mark.parametrize("name", READABLE)
def test_a_readable_kernel_is_emitted_as_it_was(name: str) -> None:
    kernel = READABLE[name]
    _, _, code = kernel_source(kernel).partition(_PREAMBLE_END)
    assert code
    text = f"// {kernel.name}\n{code}"
    file = FOLDER / "kernels" / f"{name}.cu"
    if UPDATE:
        file.write_text(text)
    assert text == file.read_text(), f"{file.name} is emitted otherwise; {_HOW}"


def test_the_quick_record_is_as_it_was() -> None:
    groups = record(entries(quick=True))
    if UPDATE:
        write(QUICK, {}, groups)
    found = differences(json.loads(QUICK.read_text())["groups"], groups)
    lines = "\n".join(": ".join(one) for one in found)
    assert not found, f"{len(found)} differences; {_HOW}\n{lines}"
