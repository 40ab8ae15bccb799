"""Weight prepacking at build time: once per weight, for constant weights only."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.script import tirx as T  # noqa: N812

from tests.libraries import loaded
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.common.nest import PREPROC
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.register_tile.config import RegisterTileConfig
from tvmopt.kernels.emit import emit
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.transform.lower import lower
from tvmopt.transform.prepack import prepack

SPEC = resolve_target("host", 2)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 24), np.float32)
W = RNG.standard_normal((24, 40), np.float32)
V = RNG.standard_normal((40, 40), np.float32)


# Tiles of 20 columns, which are packed as whole vectors.
HINT = RegisterTileConfig(
    "register_tile", SPEC.arch(), register_tile=(8, 20), loop_order=(0, 1), packing="prepacked"
)


def network(weights: list[np.ndarray | None]) -> tvm.IRModule:
    """Build scheduled matmuls of ``x`` with each weight; None makes a weight a parameter."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    params = [
        relax.Var(f"w{n}", relax.TensorType((24, 40) if n == 0 else (40, 40), "float32"))
        for n, weight in enumerate(weights)
        if weight is None
    ]
    left = iter(params)
    known = {id(w): relax.const(w) for w in weights if w is not None}
    with builder.function("main", [x, *params], {"num_input": 1, "kept": "yes"}):
        with builder.dataflow():
            y = x
            for weight in weights:
                operand = next(left) if weight is None else known[id(weight)]
                y = builder.emit(relax.op.nn.relu(relax.op.matmul(y, operand)))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    mod = lower(builder.get(), SPEC.to_tvm())
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            schedule = emit(func, HINT)
            mod[var] = finish(schedule.mod["main"], func)
    return mod


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(mod, SPEC.to_tvm()), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def calls(mod: tvm.IRModule) -> list[str]:
    """Return names of the functions that ``main`` calls, in order."""
    names: list[str] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.call_tir"):
            names.append(expr.args[0].name_hint)

    relax.analysis.post_order_visit(mod["main"], visit)
    return names


def constants(mod: tvm.IRModule) -> list[np.ndarray]:
    """Return the constants of ``main``."""
    found: dict[int, np.ndarray] = {}  # a node in several bindings is stored once

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, GenericConst):
            found[hash(expr)] = expr.value.numpy()

    relax.analysis.post_order_visit(mod["main"], visit)
    return list(found.values())


def packers(mod: tvm.IRModule) -> list[str]:
    """Return functions that pack a weight."""
    return [
        var.name_hint
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
        and ("weight_prepack" in var.name_hint or PREPROC in func.script())
    ]


def numpy(x: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    for weight in weights:
        x = np.maximum(x.astype("float64") @ weight, 0)
    return x


def test_constants_are_packed_and_the_numbers_stay() -> None:
    mod = network([W, V])
    assert len(packers(mod)) == 2
    after = prepack(mod)
    assert packers(after) == []
    assert len(calls(after)) == 2
    before, got = run(mod, X), run(after, X)
    np.testing.assert_allclose(before, numpy(X, W, V), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(got, before)


def test_a_packed_constant_is_the_weight_in_the_order_of_use() -> None:
    lanes = SPEC.arch().lanes("float32")
    [packed] = constants(prepack(network([W])))
    # (tile, k, column in the tile), zero-padded to whole vectors.
    expected = np.zeros((2, 24, -(-20 // lanes) * lanes), np.float32)
    expected[..., :20] = W.reshape(24, 2, 20).transpose(1, 0, 2)
    np.testing.assert_array_equal(packed, expected)


def test_the_attributes_and_parameters_of_main_are_kept() -> None:
    after = prepack(network([W]))
    assert after["main"].attrs["kept"] == "yes"
    assert int(after["main"].attrs["num_input"]) == 1
    assert [p.name for p in after["main"].params] == ["x"]


def test_a_weight_that_two_layers_share_keeps_the_numbers() -> None:
    mod = network([W, V, V])
    after = prepack(mod)
    assert packers(after) == []
    np.testing.assert_array_equal(run(after, X), run(mod, X))


def test_a_weight_that_two_layers_share_is_stored_once() -> None:
    assert len(constants(prepack(network([W, V, V])))) == 2


def test_a_weight_that_is_no_constant_stays_packed_at_every_call() -> None:
    mod = network([None, V])
    after = prepack(mod)
    # Its packing is now a separate call; the packing of the constant is gone.
    [packer] = packers(after)
    assert calls(after).count(packer) == 1
    assert len(calls(after)) == 3
    got = run(after, X, W)
    np.testing.assert_array_equal(got, run(mod, X, W))
    other = RNG.standard_normal(W.shape, np.float32)
    np.testing.assert_allclose(run(after, X, other), numpy(X, other, V), rtol=1e-4, atol=1e-4)


def test_nothing_to_pack_changes_nothing() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.relu(x))
        builder.emit_func_output(out)
    mod, _ = schedule_module(lower(builder.get(), SPEC.to_tvm()), SPEC.arch())
    tvm.ir.assert_structural_equal(prepack(mod), mod)


def test_the_module_given_is_not_changed() -> None:
    mod = network([W])
    text = tvm.ir.save_json(mod)
    prepack(mod)
    assert tvm.ir.save_json(mod) == text


def test_packing_twice_changes_nothing() -> None:
    once = prepack(network([W, V]))
    tvm.ir.assert_structural_equal(prepack(once), once)


@pytest.mark.parametrize("channels", [24, 40])
def test_a_convolution_is_packed(channels: int) -> None:
    kernel = RNG.standard_normal((3, 3, 8, channels), np.float32)
    image = RNG.standard_normal((1, 9, 9, 8), np.float32)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(image.shape, "float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            y = relax.op.nn.conv2d(
                x, relax.const(kernel), padding=1, data_layout="NHWC", kernel_layout="HWIO"
            )
            out = builder.emit_output(builder.normalize(y))
        builder.emit_func_output(out)
    lowered = lower(builder.get(), SPEC.to_tvm())
    mod, served = schedule_module(lowered, SPEC.arch())
    assert set(served.values()) == {"register_tile"}
    after = prepack(mod)
    assert packers(mod) != []
    assert packers(after) == []
    np.testing.assert_allclose(run(after, image), run(lowered, image), rtol=1e-4, atol=1e-4)


@T.prim_func
def _bare(a: T.Buffer((40, 24), "float32"), b: T.Buffer((40, 24), "float32")):
    for i, j in T.grid(40, 24):
        b[i, j] = a[i, j] + T.float32(1)


def test_functions_without_blocks_are_unchanged() -> None:
    """Functions of top-k and scatter have no block, and TVM's pass for packing fails on them."""
    mod = network([W])
    mod["bare"] = _bare.with_attr("tirx.is_scheduled", True)
    np.testing.assert_allclose(run(prepack(mod), X), np.maximum(X @ W, 0), rtol=1e-4, atol=1e-4)


def test_functions_that_only_call_a_library_do_not_disturb(tmp_path) -> None:
    """TopK lowers to such a function, and TVM's pass fails on it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            matmul = builder.emit(relax.op.matmul(x, relax.const(W)))
            top = builder.emit(relax.op.topk(matmul, k=3, axis=1, ret_type="values"))
            out = builder.emit_output(top)
        builder.emit_func_output(out)
    lowered = lower(builder.get(), SPEC.to_tvm())
    build_library(lowered, SPEC, tmp_path / "topk.so")
    [got] = loaded(tmp_path / "topk.so")(X)
    np.testing.assert_allclose(got, -np.sort(-(X @ W), axis=1)[:, :3], rtol=1e-4, atol=1e-4)
