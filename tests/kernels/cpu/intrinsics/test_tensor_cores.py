"""The reported instructions of a GPU kernel are those in its machine code."""

from __future__ import annotations

import pytest

from benchmarks.cuda_rows import row
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cpu.intrinsics import instructions_used
from tvmopt.kernels.first_choice import schedule_function


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("gpu", "dtype", "used"),
    [
        ("nvidia-h200", "float16", ("HGMMA",)),
        ("nvidia-h200", "bfloat16", ("HGMMA",)),
        ("nvidia-h200", "int8", ("IGMMA",)),
        ("nvidia-a100", "float16", ("HMMA",)),
        ("nvidia-a100", "int8", ("IMMA",)),
        ("nvidia-a100", "float32", ()),
    ],
)
def test_kernels_of_products(gpu: str, dtype: str, used: tuple[str, ...]) -> None:
    made = schedule_function(row(f"matmul_nt-1024-1024-1024-{dtype}").func, GPUS[gpu])
    assert made.hint is not None, made.rule
    assert instructions_used(made.func) == used
