"""SplitConcat: a large cache is copied by vectors beside its new rows; others stay whole."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from tests.emulator import cuda as emulate
from tests.kernels.cuda.serial import H200, empty_of, inputs_of, run
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cuda.common.one_launch import Member, kernels_of, one_launch
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.transform.lower import lower
from tvmopt.transform.split_concat import SplitConcat, split_concat

op = relax.op
GPU = resolve_target("nvidia-h200")


def _computed(emit, x):
    transposed = emit(op.permute_dims(x, [0, 2, 1, 3]))
    return emit(op.multiply(emit(op.sigmoid(transposed)), transposed))


def _moved(emit, x):
    return emit(op.permute_dims(x, [0, 2, 1, 3]))


def _caches(relax_main, past, new, compute, parts=1, size=128):
    """Lower the concatenation of ``parts`` caches and new rows."""

    def body(emit, x, *caches):
        return emit(op.concat([*caches, compute(emit, x)], 2))

    shapes = {"x": ((1, new, 8, size), "float16")}
    shapes |= {f"cache{n}": ((1, 8, past, size), "float16") for n in range(parts)}
    lowered = lower(relax_main(body, **shapes), GPU.to_tvm())
    return [f for v, f in lowered.functions_items() if v.name_hint != "main"]


@pytest.mark.parametrize("compute", [_computed, _moved], ids=["computed", "moved"])
def test_a_cache_is_copied_by_vectors_beside_its_new_rows(relax_main, compute) -> None:
    [cache] = _caches(relax_main, 1024, 1, compute)
    made = schedule_function(cache, GPU.arch())
    assert made.rule == "gpu_elementwise" and made.hint.vector_elements == 8
    new, copied = sorted(kernels_of(made.func), key=lambda nest: int(nest.extent))
    assert int(copied.extent) > 8 * int(new.extent)
    vectors: list[int] = []

    def on_loop(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED:
            vectors.append(int(loop.extent))

    tvm_ffi.structural_walk(copied, (tirx.For, on_loop))
    assert vectors and set(vectors) == {8}


@pytest.mark.sample(2)
@pytest.mark.parametrize(("past", "new", "parts"), [(16, 1, 1), (16, 3, 2), (57, 1, 1)])
def test_what_is_computed_stays(relax_main, past, new, parts) -> None:
    """Emulated on the GPU, in one launch; the caches are the first inputs or the last."""
    [cache] = _caches(relax_main, past, new, _computed, parts, size=64)
    kernel = schedule_function(cache, GPU.arch()).func
    assert len(kernels_of(kernel)) == parts + 1
    launch = one_launch([Member(kernel, tuple(range(parts + 1)))])
    inputs = inputs_of(cache)
    [got] = emulate.run(launch, inputs, [empty_of(cache)], H200)
    np.testing.assert_allclose(got, run(cache, inputs), atol=2e-3)


@pytest.mark.parametrize(
    ("past", "new", "compute"),
    [(1024, 512, _computed), (64, 32, _moved)],
    ids=["much computed", "much moved"],
)
def test_much_that_is_computed_stays_with_the_copy(relax_main, past, new, compute) -> None:
    [func] = _caches(relax_main, past, new, compute)
    assert len(kernels_of(schedule_function(func, GPU.arch()).func)) == 1


def test_short_rows_stay_whole(relax_main) -> None:
    """A part of each row would be less than a sector of DRAM."""

    def body(emit, x, cache):
        return emit(op.concat([cache, emit(op.sigmoid(x))], 1))

    shapes = {"x": ((512, 1), "float16"), "cache": ((512, 15), "float16")}
    lowered = lower(relax_main(body, **shapes), GPU.to_tvm())
    [func] = [f for v, f in lowered.functions_items() if v.name_hint != "main"]
    assert split_concat(func) is None


def test_symbolic_sizes_stay_whole() -> None:
    length = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    cache = relax.Var("cache", relax.TensorType((8, length, 128), "float16"))
    x = relax.Var("x", relax.TensorType((8, 1, 128), "float16"))
    with builder.function("main", [cache, x]):
        with builder.dataflow():
            y = builder.emit(op.sigmoid(x))
            out = builder.emit_output(op.concat([cache, y], 1))
        builder.emit_func_output(out)
    passes = [
        relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(), relax.transform.FuseTIR(),
    ]  # fmt: skip
    mod = tvm.transform.Sequential(passes)(builder.get())
    tvm.ir.assert_structural_equal(SplitConcat()(mod), mod)
