"""Transposes through shared memory are correct for sizes that tiles do not divide."""

from __future__ import annotations

import re

import pytest
from tvm import relax

from tests.kernels.cuda.functions import lowered
from tests.kernels.cuda.serial import assert_same, cuda_source, hint
from tvmopt.kernels.cuda.finish import finish
from tvmopt.kernels.emit import NotApplicable, emit

op = relax.op
H, F = "float16", "float32"
HINTS = [
    hint("gpu_transpose", tile=tile, threads=threads, vector_elements=vector, row_padding=pad)
    for tile, threads, vector, pad in (
        ((64, 64), 256, 8, 2),
        ((32, 32), 128, 1, 1),
        ((64, 32), 128, 4, 1),
    )
]
FUNCTIONS = {
    "matrix": lambda: lowered(lambda x: op.permute_dims(x, [1, 0]), ((96, 56), H)),
    "odd": lambda: lowered(lambda x: op.permute_dims(x, [1, 0]), ((97, 51), H)),
    "to_nhwc": lambda: lowered(lambda x: op.permute_dims(x, [0, 2, 3, 1]), ((2, 64, 16, 24), H)),
    "odd_planes": lambda: lowered(lambda x: op.permute_dims(x, [0, 2, 3, 1]), ((2, 20, 7, 7), H)),
    "planes_of_whole_tiles": lambda: lowered(
        lambda x: op.permute_dims(x, [0, 3, 1, 2]), ((1, 6, 64, 32), F)
    ),
    "batched": lambda: lowered(lambda x: op.permute_dims(x, [0, 2, 1]), ((3, 96, 128), F)),
    "rotated": lambda: lowered(lambda x: op.permute_dims(x, [2, 0, 1]), ((6, 9, 128), F)),
    "fused": lambda: lowered(
        lambda x, b: op.nn.relu(op.add(op.permute_dims(x, [1, 0]), b)), ((96, 56), H), ((96,), H)
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_computed_stays(name: str) -> None:
    assert_same(FUNCTIONS[name](), *HINTS)


def test_what_keeps_its_last_axis_is_refused() -> None:
    func = lowered(lambda x: op.permute_dims(x, [1, 0, 2]), ((4, 6, 32), F))
    with pytest.raises(NotApplicable, match="gpu_transpose: not exactly one"):
        emit(func, HINTS[0])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_thread_keeps_no_more_than_it_moves(name: str) -> None:
    func = FUNCTIONS[name]()
    for one in HINTS:
        code = cuda_source(finish(emit(func, one).mod["main"], func))
        kept = re.findall(r"\n *alignas\(\d+\) \w+ \w+\[(\d+)\]", code)
        assert all(int(count) <= one.vector_elements for count in kept)


def test_both_sides_move_sixteen_bytes_at_once() -> None:
    func = lowered(lambda x: op.permute_dims(x, [0, 2, 3, 1]), ((2, 64, 16, 24), H))
    code = cuda_source(finish(emit(func, HINTS[0]).mod["main"], func))
    assert code.count("*(uint4*)(") >= 4
    assert "__shared__" in code and "__syncthreads" in code
