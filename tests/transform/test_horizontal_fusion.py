"""HorizontalFusion: which kernels of a network become one launch, and the network's numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, tirx

from tests.kernels.cuda.serial import serial
from tvmopt.device.target import resolve_target
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.transform.horizontal_fusion import HorizontalFusion
from tvmopt.transform.lower import lower

op = relax.op
GPU = resolve_target("nvidia-h200")
X, Y = ((24, 64), "float32"), ((24, 64), "float32")


def _scheduled(mod: tvm.IRModule) -> tvm.IRModule:
    return schedule_module(lower(mod, GPU.to_tvm()), GPU.arch())[0]


def _launches(mod: tvm.IRModule) -> list[str]:
    calls = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [
        call.args[0].name_hint
        for call in calls
        if isinstance(call, relax.Call) and getattr(call.op, "name", "") == "relax.call_tir"
    ]


def _run(mod: tvm.IRModule, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Run a scheduled module on the CPU, with its threads as serial loops."""
    plain = tvm.IRModule(
        {v: serial(f) if isinstance(f, tirx.PrimFunc) else f for v, f in mod.functions_items()}
    )
    machine = relax.VirtualMachine(tvm.compile(plain, tvm.target.Target("llvm")), tvm.cpu())
    got = machine["main"](*map(tvm.runtime.tensor, inputs))
    return [array.numpy() for array in (got if isinstance(got, list | tuple) else list(got))]


def _inputs(*shapes) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for shape, dtype in shapes]


def independent(emit, x, y):
    """Three readers of two inputs, and a sum over rows, which is no elementwise kernel."""
    total = emit(op.sum(x, axis=1))
    sliced = emit(op.strided_slice(x, [1], [8], [40]))
    joined = emit(op.concat([x, y], 1))
    repeated = emit(op.repeat(y, 2, 0))
    return emit(relax.Tuple([total, sliced, joined, repeated]))


def test_independent_kernels_are_one_launch(relax_main) -> None:
    mod = _scheduled(relax_main(independent, x=X, y=Y))
    fused = HorizontalFusion()(mod)
    before, after = _launches(mod), _launches(fused)
    assert len(before) == 4 and len(after) == 2
    [launch] = [name for name in after if name.startswith("horizontal")]
    # The input is shared, and the functions that nobody calls are gone.
    assert len(fused[launch].params) == 2 + 3
    assert fused[launch].attrs["global_symbol"] == launch
    assert {v.name_hint for v, _ in fused.functions_items()} == {"main", *after}
    relax.analysis.well_formed(fused)


def test_the_network_computes_the_same(relax_main) -> None:
    x, y = _inputs(X, Y)
    fused = HorizontalFusion()(_scheduled(relax_main(independent, x=X, y=Y)))
    total, sliced, joined, repeated = _run(fused, [x, y])
    np.testing.assert_allclose(total, x.sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(sliced, x[:, 8:40])
    np.testing.assert_array_equal(joined, np.concatenate([x, y], 1))
    np.testing.assert_array_equal(repeated, np.repeat(y, 2, 0))


def test_a_launch_is_not_fused_again(relax_main) -> None:
    fused = HorizontalFusion()(_scheduled(relax_main(independent, x=X, y=Y)))
    tvm.ir.assert_structural_equal(HorizontalFusion()(fused), fused)


def test_equal_groups_share_a_function(relax_main) -> None:
    """Two layers; the order of the calls within a layer does not matter."""

    def layers(emit, x, y):
        outputs = []
        for turn in range(2):
            parts = [lambda v: emit(op.flip(v, 0)), lambda v: emit(op.flip(v, 1))]
            outputs += [part(x) for part in parts[:: 1 - 2 * turn]]
            x = emit(op.cumsum(outputs[-1], 0))
        return emit(relax.Tuple(outputs))

    mod = HorizontalFusion()(_scheduled(relax_main(layers, x=X, y=Y)))
    fused = [name for name in _launches(mod) if name.startswith("horizontal")]
    assert len(fused) == 2 and len(set(fused)) == 1


def test_kernels_that_depend_on_each_other_are_apart(relax_main) -> None:
    def chain(emit, x, y):
        first = emit(op.sum(x, axis=1, keepdims=True))
        taken = emit(op.repeat(emit(op.multiply(first, y)), 2, 0))
        return emit(op.sum(taken, axis=1))

    mod = _scheduled(relax_main(chain, x=X, y=Y))
    tvm.ir.assert_structural_equal(HorizontalFusion()(mod), mod)


def test_a_kernel_is_not_delayed_past_many_launches(relax_main) -> None:
    """A delayed kernel keeps its inputs in memory."""

    def graph(emit, x, y):
        first = emit(op.flip(x, 0))
        for _ in range(20):
            x = emit(op.cumsum(x, 0))
        return emit(relax.Tuple([first, emit(op.flip(y, 1)), x]))

    mod = _scheduled(relax_main(graph, x=X, y=Y))
    assert not any(name.startswith("horizontal") for name in _launches(HorizontalFusion()(mod)))


def test_large_kernels_are_apart(relax_main) -> None:
    def large(emit, x, y):
        return emit(relax.Tuple([emit(op.exp(x)), emit(op.repeat(y, 2, 0))]))

    size = ((4096, 2048), "float32")
    mod = _scheduled(relax_main(large, x=size, y=size))
    tvm.ir.assert_structural_equal(HorizontalFusion()(mod), mod)


def test_functions_without_dataflow_stay() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(*X))
    with builder.function("main", [x]):
        y = builder.emit(op.exp(x))
        z = builder.emit(op.repeat(x, 2, 0))
        builder.emit_func_output(relax.Tuple([y, z]))
    mod = relax.transform.LegalizeOps()(builder.get())
    tvm.ir.assert_structural_equal(HorizontalFusion()(mod), mod)


_OPERATORS = {
    "repeat": (lambda x: op.repeat(x, 2, 0), lambda x: np.repeat(x, 2, 0)[::2]),
    "concat": (lambda x: op.concat([x, x], 1), lambda x: x),
    "sum": (lambda x: op.sum(x, axis=1, keepdims=True), lambda x: x.sum(1, keepdims=True)),
    "flip": (lambda x: op.flip(x, 0), lambda x: x[::-1]),
}


@settings(max_examples=5, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(_OPERATORS)), st.integers(0, 7)), min_size=2,
                max_size=7))  # fmt: skip
def test_any_graph_computes_the_same(relax_main, chosen) -> None:
    """Each operator reads the input or an earlier result, summed to rows; all are outputs."""

    def graph(emit, x):
        rows, outputs = [x], []
        for name, source in chosen:
            out = emit(_OPERATORS[name][0](rows[source % len(rows)]))
            outputs.append(out)
            rows.append(emit(op.add(emit(op.sum(out, keepdims=True)), x)))
        return emit(relax.Tuple(outputs))

    mod = _scheduled(relax_main(graph, x=((6, 8), "float32")))
    fused = HorizontalFusion()(mod)
    relax.analysis.well_formed(fused)
    assert len(_launches(fused)) <= len(_launches(mod))
    x = _inputs(((6, 8), "float32"))
    for got, want in zip(_run(fused, x), _run(mod, x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", sorted(_OPERATORS))
def test_operators_of_the_property_are_right(relax_main, name) -> None:
    """The reference of the property above is the unfused module; here it is NumPy."""
    build, expected = _OPERATORS[name]

    def graph(emit, x):
        return emit(relax.Tuple([emit(build(x)), emit(op.flip(x, 1))]))

    [x] = _inputs(((6, 8), "float32"))
    got, flipped = _run(
        HorizontalFusion()(_scheduled(relax_main(graph, x=(x.shape, "float32")))), [x]
    )
    got = got[::2] if name == "repeat" else got[:, : expected(x).shape[1]]
    np.testing.assert_allclose(got, expected(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(flipped, x[:, ::-1])
