"""Row and column reductions are correct for sizes that threads and vectors do not divide."""

from __future__ import annotations

import dataclasses

import pytest
from tvm import relax, te, tirx, topi

from tests.kernels.cuda.functions import computed, lowered, product, sums
from tests.kernels.cuda.serial import assert_same, cuda_source, hint
from tvmopt.kernels.cuda.finish import finish
from tvmopt.kernels.cuda.row_reduction.config import RowCache
from tvmopt.kernels.cuda.row_reduction.form import prepare_rows
from tvmopt.kernels.emit import NotApplicable, emit
from tvmopt.kernels.workload import Refusal

op, nn = relax.op, relax.op.nn
H, F = "float16", "float32"
ROWS = [
    hint(
        "gpu_row_reduction",
        threads=rows,
        reduce_threads=share,
        vector_elements=vector,
        unroll=unroll,
    )
    for rows, share, vector, unroll in ((1, 256, 4, 1), (4, 8, 2, 4), (3, 32, 1, 2), (16, 4, 8, 1))
]
STAGED = [
    hint(
        "gpu_row_reduction",
        threads=1,
        reduce_threads=64,
        vector_elements=4,
        row_cache=RowCache.SHARED,
        unroll=2,
    ),
    hint(
        "gpu_row_reduction",
        threads=4,
        reduce_threads=16,
        vector_elements=2,
        row_cache=RowCache.SHARED,
    ),
]
KEPT = [
    hint(
        "gpu_row_reduction",
        threads=2,
        reduce_threads=8,
        vector_elements=4,
        row_cache=RowCache.REGISTERS,
    )
]


def layer_norm(*shape: int) -> tirx.PrimFunc:
    width = shape[-1:]
    return lowered(lambda x, g, b: nn.layer_norm(x, g, b, -1), (shape, H), (width, H), (width, H))


def narrow_layer_norm(*shape: int) -> tirx.PrimFunc:
    """LayerNorm of float16 rows in float32, with a scale and a shift in float32."""
    width = shape[-1:]

    def make(x: te.Tensor, g: te.Tensor, b: te.Tensor) -> te.Tensor:
        return topi.cast(topi.nn.layer_norm(topi.cast(x, F), g, b, [len(shape) - 1], 1e-5), H)

    return computed(make, (shape, H), (width, F), (width, F))


def group_norm(*shape: int) -> tirx.PrimFunc:
    width = shape[1:2]
    return lowered(
        lambda x, g, b: nn.group_norm(x, g, b, 2, 1, [2, 3]), (shape, F), (width, F), (width, F)
    )


SINGLE = {
    "sum": lambda: sums(1, ((13, 1000), H)),
    "max": lambda: lowered(lambda x: op.max(x, [1]), ((20, 96), H)),
    "pooled": lambda: lowered(lambda x: op.mean(x, [2, 3]), ((3, 5, 7, 7), F)),
    "argmax": lambda: lowered(lambda x: op.argmax(x, 1), ((13, 100), F)),
    "all": lambda: lowered(lambda x: op.sum(x), ((16, 24), F)),
}
SEVERAL = {
    "softmax": lambda: lowered(lambda x: nn.softmax(x, -1), ((13, 100), H)),
    "log_softmax": lambda: lowered(lambda x: nn.log_softmax(x, -1), ((6, 5, 64), F)),
    "layer_norm": lambda: layer_norm(5, 7, 48),
    "narrow_layer_norm": lambda: narrow_layer_norm(5, 7, 96),
    "rms_norm": lambda: lowered(lambda x, g: nn.rms_norm(x, g, -1), ((9, 64), H), ((64,), H)),
    "instance_norm": lambda: lowered(
        lambda x, g, b: nn.instance_norm(x, g, b, 1, [2, 3]),
        ((3, 5, 12, 16), F),
        ((5,), F),
        ((5,), F),
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SINGLE)
def test_sums_of_rows_stay(name: str) -> None:
    assert_same(SINGLE[name](), *ROWS)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SEVERAL)
def test_norms_stay(name: str) -> None:
    assert_same(SEVERAL[name](), *ROWS, *STAGED)


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [(2, 8, 28, 28), (3, 6, 7, 7)])
def test_rows_that_are_parts_of_an_axis(shape: tuple[int, ...]) -> None:
    func = group_norm(*shape)
    form = prepare_rows(func)
    assert not isinstance(form, Refusal) and form.crosses
    assert_same(func, ROWS[0], ROWS[1], STAGED[0])


def test_a_scale_in_float32_does_not_halve_the_vectors_of_float16_rows() -> None:
    form = prepare_rows(narrow_layer_norm(5, 7, 96))
    assert not isinstance(form, Refusal) and form.vector == 8


def test_rows_are_kept_in_registers() -> None:
    assert_same(lowered(lambda x: nn.softmax(x, -1), ((12, 256), H)), *KEPT)
    assert_same(layer_norm(5, 7, 64), *KEPT)
    assert_same(narrow_layer_norm(5, 7, 128), dataclasses.replace(KEPT[0], vector_elements=8))
    with pytest.raises(NotApplicable, match="do not divide a row"):
        emit(lowered(lambda x: nn.softmax(x, -1), ((12, 100), H)), KEPT[0])


def test_a_kept_row_is_read_once_and_stays_in_registers() -> None:
    func = lowered(lambda x: nn.softmax(x, -1), ((64, 1024), F))
    one = hint(
        "gpu_row_reduction",
        threads=2,
        reduce_threads=32,
        vector_elements=4,
        row_cache=RowCache.REGISTERS,
    )
    code = cuda_source(finish(emit(func, one).mod["main"], func))
    assert code.count("(x0_ptr + ") == 8  # 1024 / 32 / 4 loads
    assert "x0_local_ptr[32]" in code
    assert "__shfl_down_sync" in code


@pytest.mark.slow  # as the row above
def test_a_ragged_row_stays_in_registers_too() -> None:
    func = lowered(lambda x: nn.softmax(x, -1), ((3, 7, 197), H))
    one = hint(
        "gpu_row_reduction",
        threads=4,
        reduce_threads=32,
        vector_elements=1,
        row_cache=RowCache.REGISTERS,
    )
    assert_same(func, one)
    code = cuda_source(finish(emit(func, one).mod["main"], func))
    assert "x0_local_ptr[7]" in code  # 197 / 32, not one for each thread
    assert code.count("= x0_ptr[") == 7 and "< 5" in code
    assert_same(layer_norm(5, 7, 45), one)


def test_more_shared_memory_than_there_is_is_not_asked_for() -> None:
    func = lowered(lambda x: nn.softmax(x, -1), ((16, 64000), F))
    one = hint(
        "gpu_row_reduction",
        threads=1,
        reduce_threads=256,
        vector_elements=4,
        row_cache=RowCache.SHARED,
    )
    code = cuda_source(finish(emit(func, one).mod["main"], func))
    assert "x0_shared" not in code


COLUMNS = [
    hint(
        "gpu_column_reduction",
        threads=x,
        reduce_threads=y,
        vector_elements=vector,
        split_k=split,
        unroll=unroll,
        tree=tree,
    )
    for x, y, vector, split, unroll, tree in (
        (8, 32, 8, 1, 4, False),
        (16, 16, 8, 4, 4, False),
        (32, 8, 4, 1, 2, True),
        (64, 1, 8, 4, 2, False),
        (64, 1, 1, 1, 1, False),
    )
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [(256, 512), (252, 75), (128, 24)])
def test_sums_of_columns_stay(shape: tuple[int, int]) -> None:
    assert_same(sums(0, (shape, H)), *COLUMNS)


def test_a_product_with_a_weight_that_is_not_transposed() -> None:
    assert_same(product(3, 264, 128, transposed=False), *COLUMNS)


def test_pooling_over_all_pixels() -> None:
    func = lowered(lambda x: op.mean(x, [1, 2]), ((3, 4, 8, 40), H))
    fit = [one for one in COLUMNS if one.split_k * one.reduce_threads <= 32]
    assert_same(func, *fit)
    [other] = [one for one in COLUMNS if one not in fit]
    with pytest.raises(NotApplicable, match="gpu_column_reduction: a column has fewer elements"):
        emit(func, other)


WALKS = [hint("gpu_column_walk", threads=t, unroll=u) for t, u in ((32, 1), (128, 4), (64, 19))]
WALKED = {
    "softmax": lambda: lowered(lambda x: nn.softmax(x, 1), ((2, 19, 8, 6), F)),
    "argmax": lambda: lowered(lambda x: op.argmax(x, 1), ((2, 19, 8, 6), F)),
    "max": lambda: lowered(lambda x: op.max(x, 1), ((2, 20, 8, 6), F)),
    "log_softmax": lambda: lowered(lambda x: nn.log_softmax(x, 0), ((20, 7), H)),
    "layer_norm": lambda: lowered(
        lambda x, g, b: nn.layer_norm(x, g, b, [1]), ((2, 16, 5), F), ((16,), F), ((16,), F)
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", WALKED)
def test_columns_that_a_thread_walks(name: str) -> None:
    assert_same(WALKED[name](), *WALKS)


def test_rows_are_no_columns_and_columns_no_rows() -> None:
    with pytest.raises(NotApplicable, match="rows are not contiguous"):
        emit(sums(0, ((32, 64), H)), ROWS[0])
    with pytest.raises(NotApplicable, match="columns are not contiguous"):
        emit(sums(1, ((32, 64), H)), COLUMNS[0])


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(20, 10), (9, 33), (4, 1)])
def test_kept_rows_without_vectors(shape: tuple[int, int]) -> None:
    """Single elements: TVM makes a reduction axis of extent 1 spatial."""
    func = lowered(lambda x: nn.softmax(x, -1), (shape, F))
    for share in (1, 2, 3):
        one = hint(
            "gpu_row_reduction",
            threads=4,
            reduce_threads=share,
            vector_elements=1,
            row_cache=RowCache.REGISTERS,
        )
        try:
            scheduled = emit(func, one).mod["main"]
        except NotApplicable:
            continue
        assert_same(func, one)
        cuda_source(finish(scheduled, func))
