"""MultiOutputFusion: which elementwise kernels join their producer, and the network's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, tirx

from tests.libraries import loaded
from tvmopt.build import build_library
from tvmopt.codegen import generator
from tvmopt.device.target import resolve_target
from tvmopt.kernels.call_tir import called_function
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.profile.kernels import KernelTable
from tvmopt.transform.lower import lower
from tvmopt.transform.multi_output_fusion import MultiOutputFusion

op = relax.op
HOST = resolve_target("host", 2)
RNG = np.random.default_rng(0)
X = ((60, 64), "float32")
WEIGHTS = [RNG.standard_normal((64, 64)).astype("float32") / 8 for _ in range(2)]


def quantize(x, scale: float = 20.0, zero_point: int = 3, dtype: str = "uint8"):
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    shifted = op.add(op.round(op.multiply(x, relax.const(scale))), relax.const(float(zero_point)))
    return op.astype(op.clip(shifted, low, high), dtype)


def residual(emit, x):
    """A sum that is quantized, and that a matmul and an add read."""
    first, second = (relax.const(weight) for weight in WEIGHTS)
    stream = emit(op.nn.relu(op.add(op.matmul(x, first), x)))
    narrow = emit(quantize(stream))
    return emit(relax.Tuple([narrow, emit(op.add(op.matmul(stream, second), stream))]))


def kernels(mod: tvm.IRModule) -> list[str]:
    """Return the names of the kernels that ``main`` calls, in order."""
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    return [name for b in bindings if (name := called_function(b.value))]


def scheduled(mod: tvm.IRModule, spec=HOST) -> tvm.IRModule:
    return schedule_module(lower(mod, spec.to_tvm()), spec.arch())[0]


def test_the_producer_stores_both(relax_main) -> None:
    before = scheduled(relax_main(residual, x=X))
    after = MultiOutputFusion()(before)
    first, second, *rest = kernels(before)
    assert kernels(after) == [f"{first}_also_{second}", *rest]
    assert {v.name_hint for v, _ in after.functions_items()} == {"main", *kernels(after)}
    relax.analysis.well_formed(after)
    fused = after[f"{first}_also_{second}"]
    assert [str(buffer.dtype) for buffer in fused.params[-2:]] == ["float32", "uint8"]


def test_without_a_pair_the_module_stays(relax_main) -> None:
    alone = scheduled(relax_main(lambda emit, x: emit(op.matmul(x, relax.const(WEIGHTS[0]))), x=X))
    assert MultiOutputFusion()(alone).same_as(alone)


@pytest.mark.parametrize(
    "then",
    [
        lambda x: op.permute_dims(quantize(x)),  # other indices
        lambda x: op.multiply(quantize(x), quantize(op.flip(x, 1))),  # other elements, too
        lambda x: quantize(op.exp(x)),  # a function that takes many instructions
        lambda x: op.sum(x, axis=1, keepdims=True),
        lambda x: op.cumsum(x, axis=1),
    ],
    ids=["transposed", "flipped", "exp", "sum", "cumsum"],
)
def test_other_consumers_stay_separate(then, relax_main) -> None:
    def body(emit, x):
        stream = emit(op.nn.relu(op.matmul(x, relax.const(WEIGHTS[0]))))
        return emit(relax.Tuple([emit(then(stream)), emit(op.matmul(stream, stream))]))

    before = scheduled(relax_main(body, x=((64, 64), "float32")))
    assert kernels(MultiOutputFusion()(before)) == kernels(before)


def test_a_consumer_of_an_input_stays_separate(relax_main) -> None:
    def body(emit, x):
        return emit(relax.Tuple([emit(quantize(x)), emit(op.matmul(x, relax.const(WEIGHTS[0])))]))

    before = scheduled(relax_main(body, x=X))
    assert kernels(MultiOutputFusion()(before)) == kernels(before)


def test_the_first_of_two_consumers_joins(relax_main) -> None:
    def body(emit, x):
        stream = emit(op.nn.relu(op.matmul(x, relax.const(WEIGHTS[0]))))
        some = [quantize(stream), quantize(stream, 7.0, 1), op.matmul(stream, stream)]
        return emit(relax.Tuple([emit(one) for one in some]))

    before = scheduled(relax_main(body, x=((64, 64), "float32")))
    after = MultiOutputFusion()(before)
    relax.analysis.well_formed(after)
    assert sum("_also_" in name for name in kernels(after)) == 1
    assert len(kernels(after)) == len(kernels(before)) - 1


def test_a_kernel_that_reads_its_output_stores_one(relax_main) -> None:
    """A reduction without an epilogue accumulates in its output."""
    before = scheduled(relax_main(residual, x=X))
    names = kernels(before)

    def accumulates(func: tirx.PrimFunc) -> tirx.PrimFunc:
        output = func.params[-1]

        def twice(store: tirx.BufferStore) -> tirx.BufferStore:
            if not store.buffer.same_as(output):
                return store
            value = store.value + tirx.BufferLoad(output, store.indices)
            return tirx.BufferStore(output, value, store.indices)

        body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, twice), order="post")
        return func.with_body(body)

    changed = before.clone()
    var = before.get_global_var(names[0])
    changed.update_func(var, accumulates(before[var]))
    assert kernels(MultiOutputFusion()(changed)) == names


def results(mod: tvm.IRModule, arrays: list[np.ndarray], folder: Path, native: bool = True):
    built = build_library(lower(mod, HOST.to_tvm()), HOST, folder / "a.so", native=native)
    return loaded(built.path)(*arrays)


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 70),
    columns=st.sampled_from([16, 24, 64, 100]),
    scale=st.floats(0.5, 100),
    zero_point=st.integers(0, 20),
    dtype=st.sampled_from(["uint8", "int8"]),
    native=st.booleans(),
)
def test_both_outputs_are_exact(
    rows, columns, scale, zero_point, dtype, native, relax_main, tmp_path_factory
) -> None:
    weight = RNG.standard_normal((32, columns)).astype("float32")
    x, r = (RNG.standard_normal(s).astype("float32") for s in ((rows, 32), (rows, columns)))

    def body(emit, x, r):
        stream = emit(op.nn.relu(op.add(op.matmul(x, relax.const(weight)), r)))
        narrow = emit(quantize(stream, scale, zero_point, dtype))
        return emit(relax.Tuple([stream, narrow, emit(op.add(stream, r))]))

    mod = relax_main(body, x=(x.shape, "float32"), r=(r.shape, "float32"))
    folder = tmp_path_factory.mktemp("fused")
    stream, narrow, total = results(mod, [x, r], folder, native)
    np.testing.assert_allclose(stream, np.maximum(x @ weight + r, 0), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(total, stream + r)
    limits = np.iinfo(dtype)
    rounded = np.round(stream * np.float32(scale)) + zero_point
    np.testing.assert_array_equal(narrow, np.clip(rounded, limits.min, limits.max).astype(dtype))


def test_a_network_computes_the_same_bits(relax_main, tmp_path, monkeypatch) -> None:
    mod = relax_main(residual, x=X)
    x = RNG.standard_normal(X[0]).astype("float32")
    fused = results(mod, [x], tmp_path)

    @tvm.transform.module_pass(opt_level=0, name="Nothing")
    def nothing(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return mod

    monkeypatch.setattr(generator, "MultiOutputFusion", lambda: nothing)
    for one, other in zip(fused, results(mod, [x], tmp_path), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_profile_finds_the_facts_of_the_producer(relax_main) -> None:
    mod = relax_main(residual, x=X)
    lowered = lower(mod, HOST.to_tvm())
    before = schedule_module(lowered, HOST.arch())[0]
    table = KernelTable(mod, lowered, before, [], HOST, {})
    fused = kernels(MultiOutputFusion()(before))
    assert [facts.operators for facts in table.facts([f"{fused[0]}_prepacked", *fused[1:]])] == [
        facts.operators for facts in table.facts([kernels(before)[0], *kernels(before)[2:]])
    ]
    assert "matmul add" in table.facts(fused)[0].operators
