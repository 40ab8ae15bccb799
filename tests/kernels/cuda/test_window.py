"""Pooling, depthwise convolution, and the fallback for every function."""

from __future__ import annotations

import pytest
from tvm import relax

from tests.kernels.cuda.functions import lowered
from tests.kernels.cuda.serial import assert_same, cuda_source, hint
from tvmopt.kernels.cuda.finish import finish
from tvmopt.kernels.emit import emit

op, nn = relax.op, relax.op.nn
H, F = "float16", "float32"
HINTS = [
    hint(
        "gpu_window",
        threads=threads,
        vector_elements=vector,
        vectorize_compute=compute,
        vectors_per_thread=vectors,
    )
    for threads, vector, compute, vectors in (
        (128, 8, False, 1),
        (128, 8, True, 1),
        (256, 4, True, 7),
        (64, 1, False, 7),
    )
]
FUNCTIONS = {
    "max_nhwc": lambda: lowered(
        lambda x: nn.max_pool2d(x, (3, 3), (2, 2), 1, layout="NHWC"), ((2, 14, 14, 24), H)
    ),
    "average": lambda: lowered(lambda x: nn.avg_pool2d(x, (2, 2), (2, 2)), ((3, 4, 14, 14), F)),
    "average_padded": lambda: lowered(
        lambda x: nn.avg_pool2d(x, (3, 3), (2, 2), 1, layout="NHWC"), ((2, 13, 13, 16), H)
    ),
    "depthwise_nhwc": lambda: lowered(
        lambda x, w: nn.conv2d(
            x, w, padding=1, groups=24, data_layout="NHWC", kernel_layout="HWIO"
        ),
        ((2, 14, 14, 24), H),
        ((3, 3, 1, 24), H),
    ),
    "depthwise": lambda: lowered(
        lambda x, w: nn.conv2d(x, w, padding=1, groups=24), ((2, 24, 7, 7), F), ((24, 1, 3, 3), F)
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_computed_stays(name: str) -> None:
    assert_same(FUNCTIONS[name](), *HINTS, hint("gpu_fallback", threads=64))


def test_channels_are_one_vector() -> None:
    func = FUNCTIONS["max_nhwc"]()
    code = cuda_source(finish(emit(func, HINTS[1]).mod["main"], func))
    assert code.count("*(uint4*)(x0_ptr") == 9


def test_the_fallback_takes_a_matrix_product() -> None:
    func = lowered(op.matmul, ((9, 20), F), ((20, 30), F))
    assert_same(func, hint("gpu_fallback", threads=64))
