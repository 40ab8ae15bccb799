"""GEMV with one or a few rows, and with int4 weights."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm import te, tirx

from tests.kernels.cuda.functions import computed, int4_product, product
from tests.kernels.cuda.serial import assert_same, cuda_source, hint
from tvmopt.kernels.cuda.finish import finish
from tvmopt.kernels.cuda.gemv.schedule import prepare_gemv
from tvmopt.kernels.emit import NotApplicable, emit
from tvmopt.kernels.workload import Refusal

HINTS = [
    hint(
        "gpu_gemv",
        rows_per_thread=own,
        threads=rows,
        reduce_threads=share,
        vector_elements=vector,
        unroll=unroll,
    )
    for share, rows, own, vector, unroll in (
        (32, 4, 1, 8, 1),
        (16, 8, 2, 4, 2),
        (64, 2, 1, 8, 4),
        (32, 3, 1, 2, 1),
    )
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("sizes", [(1, 100, 256), (5, 97, 260), (8, 16, 512), (1, 13, 101)])
def test_what_is_computed_stays(sizes: tuple[int, int, int]) -> None:
    assert_same(product(*sizes), *HINTS)


def test_other_types_and_a_result_that_nothing_follows() -> None:
    def make(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        r = te.reduce_axis((tirx.IntImm("int64", 0), x.shape[1]), "r")
        return te.compute(
            (x.shape[0], w.shape[0]), lambda i, j: te.sum(x[i, r] * w[j, r], axis=r), name="total"
        )

    assert_same(computed(make, ((1, 96), "float32"), ((42, 96), "float32")), *HINTS)


@pytest.mark.sample(2)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_weights_of_four_bits(dtype: str, whole: bool) -> None:
    func = int4_product(1, 40, 512, 32, dtype, whole)
    form = prepare_gemv(func)
    assert not isinstance(form, Refusal) and form.packed == 8
    assert_same(func, *HINTS)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_four_bits_become_floats_without_conversion(dtype: str, whole: bool) -> None:
    func = int4_product(1, 64, 1024, 128, dtype, whole)
    one = hint("gpu_gemv", rows_per_thread=2, threads=4, reduce_threads=32, vector_elements=4)
    scheduled = emit(func, one).mod["main"]
    code = cuda_source(finish(scheduled, func))
    assert f"tvmopt_int4_f{dtype[-2:]}_8(" in code
    assert "& (uint)15" not in code
    assert f"({'half' if dtype == 'float16' else 'float'})((" in cuda_source(scheduled)


def test_other_offsets_and_scales_stay_exact() -> None:
    """A float32 scale would be rounded at another place: such a GEMV is not rewritten."""
    func = int4_product(1, 16, 256, 32, "float32")

    def widen(cast: tirx.Cast) -> object:
        is_scale = "float16" in str(cast.value.ty.dtype) and "x2" in str(cast.value)
        return tirx.const(0.1, "float32") if is_scale else cast

    other = func.with_body(tvm_ffi.structural_map(func.body, (tirx.Cast, widen), order="post"))
    assert "tvmopt_int4" in finish(func, func).script()
    assert "tvmopt_int4" not in finish(other, other).script()


def test_a_product_of_many_rows_is_refused() -> None:
    with pytest.raises(NotApplicable, match="gpu_gemv: not a matrix times at most 8 vectors"):
        emit(product(64, 64, 64), HINTS[0])


def test_weights_are_loaded_by_sixteen_bytes() -> None:
    func = product(1, 64, 1024)
    one = hint(
        "gpu_gemv", rows_per_thread=2, threads=4, reduce_threads=32, vector_elements=8, unroll=2
    )
    code = cuda_source(finish(emit(func, one).mod["main"], func))
    assert code.count("*(uint4*)(x1_ptr") == 2  # in a loop over the two rows
    assert "__shfl_down_sync" in code
