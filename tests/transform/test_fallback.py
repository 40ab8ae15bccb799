"""Fallback of Winograd convolutions in a module: added functions and shared functions."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.runtime.fallback import FALLBACK, fallback, holds_nan
from tvmopt.runtime.library import open_library
from tvmopt.transform.fallback import add_fallback, lower_direct, wants_fallback
from tvmopt.transform.lower import lower
from tvmopt.transform.plan import Implementation

SPEC = resolve_target("host", 2)
TARGET = SPEC.to_tvm()


def network(*kernels: int, size: int = 28) -> tvm.IRModule:
    """Build 64-channel convolutions in NHWC, each with its own weight and a relu."""
    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, size, size, 64), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for k in kernels:
                weight = rng.standard_normal((k, k, 64, 64), np.float32) / (8 * k)
                y = relax.op.nn.conv2d(
                    y, relax.const(weight), padding=k // 2, data_layout="NHWC", kernel_layout="HWIO"
                )
                y = builder.emit(relax.op.nn.relu(builder.emit(y)))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


def names(mod: tvm.IRModule) -> set[str]:
    return {var.name_hint for var in mod.get_global_vars()}


def test_only_networks_with_tiles_want_one() -> None:
    assert wants_fallback(lower(network(3, 1), TARGET))
    assert not wants_fallback(lower(network(1), TARGET))
    assert not wants_fallback(lower(network(3), TARGET, winograd=False))


def test_layers_alike_are_shared_with_their_schedules() -> None:
    mod = network(3, 1, 3, 1)
    lowered, direct = lower(mod, TARGET), lower_direct(mod, TARGET, {})
    scheduled, _ = schedule_module(lowered, SPEC.arch())
    both = add_fallback(scheduled, lowered, direct)
    new = names(both) - names(lowered)
    assert len(new) == 2 and FALLBACK in new  # both 3 x 3 convolutions share one function
    for var, func in scheduled.functions_items():
        assert tvm_ffi.structural_equal(func, both[var.name_hint])
    called: set[str] = set()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == "relax.call_tir":
            called.add(expr.args[0].name_hint)

    relax.analysis.post_order_visit(both[FALLBACK], visit)
    assert called <= names(both)
    assert len(called) == 2 and new - {FALLBACK} < called
    assert both[FALLBACK].attrs["global_symbol"] == FALLBACK


@pytest.mark.parametrize("way", [Implementation("", "winograd4"), Implementation("NCHW16c", "")])
def test_a_plan_keeps_its_layouts_and_loses_its_tiles(way) -> None:
    mod = network(3, 1)
    layer = 0
    assert not wants_fallback(lower_direct(mod, TARGET, {layer: way}))
    if way.layout:
        texts = [
            str(param.shape)
            for _, func in lower_direct(mod, TARGET, {layer: way}).functions_items()
            if isinstance(func, tirx.PrimFunc)
            for param in func.params
        ]
        assert any(text.count(",") == 4 for text in texts)  # five dimensions: blocks of channels


def test_both_functions_compute_the_same(tmp_path) -> None:
    mod = network(3, 1)
    lowered = lower(mod, TARGET)
    path = tmp_path / "a.so"
    built = build_library(lowered, SPEC, path, direct=lower_direct(mod, TARGET, {}))
    assert any(name.endswith("_direct") for name in built.sources)
    executor = open_library(str(path), threads=2)
    x = executor.tensor(np.random.default_rng(1).standard_normal((1, 28, 28, 64), np.float32))
    direct = fallback(executor, [x])
    assert direct is not None
    [got], [wanted] = executor.bind("main", [x])(), direct()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    assert (got != wanted).any()  # they are not one function
    build_library(lowered, SPEC, tmp_path / "b.so", quick=True)
    assert fallback(open_library(str(tmp_path / "b.so"), threads=2), [x]) is None


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("place", [0, 1, 63, 64, 1000])
def test_a_nan_is_found_wherever_it_is(dtype, place) -> None:
    array = np.linspace(-1, 1, 1001).astype(dtype).reshape(7, 11, 13)
    array.flat[place // 2], array.flat[-1 - place // 2] = np.inf, -np.inf
    assert not holds_nan([array])
    array.flat[place] = np.nan
    assert holds_nan([np.zeros(3, dtype), array]) and holds_nan([array[:, ::-1].T])


def test_which_dtypes_hold_no_nan() -> None:
    none = [np.zeros((0, 3), np.float32), np.arange(3), np.ones(2, bool), np.float32(np.inf)]
    assert not holds_nan(np.asarray(array) for array in none)
    assert holds_nan([np.asarray(np.float32(np.nan))])
