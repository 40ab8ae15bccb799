"""CUDA's messages that memory does not suffice."""

from __future__ import annotations

import pytest

from tvmopt.device.gpu_memory import is_out_of_gpu_memory
from tvmopt.errors import AccuracyError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("InternalError: CUDA: out of memory", True),
        ("cudaMalloc failed: out of memory", True),
        ("CUDA_ERROR_OUT_OF_MEMORY", True),
        ("CUDA: an illegal memory access was encountered", False),
        ("out of memory", False),
    ],
)
def test_messages(text: str, expected: bool) -> None:
    assert is_out_of_gpu_memory(RuntimeError(text)) == expected


def test_the_cause_counts() -> None:
    try:
        try:
            raise RuntimeError("CUDA: out of memory")
        except RuntimeError as cause:
            raise AccuracyError("the import must run") from cause
    except AccuracyError as error:
        assert is_out_of_gpu_memory(error)
