"""Deeply nested ``Let`` expressions become statements; with them, compiling would take for ever."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx

from tvmopt.device.target import resolve_target
from tvmopt.kernels.passes.flatten_lets import flatten_lets
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE


def _chain(levels: int, value: ir.Expr) -> ir.Expr:
    """Return ``x -> max(1 - x, x / 2)`` applied ``levels`` times, with a ``Let`` for each."""
    dtype = str(value.ty.dtype)
    one, half = tirx.const(1, dtype), tirx.const(0.5, dtype)
    for level in range(levels):
        x = tirx.Var(f"x{level}", dtype)
        value = tirx.Let(x, value, tirx.Select(one - x > x * half, one - x, x * half))
    return value


def _function(levels: int, lanes: int = 1) -> tirx.PrimFunc:
    """Return a function that applies a chain to each vector of 64 numbers."""
    x, y = (tirx.decl_buffer((64,), "float32", name) for name in ("x", "y"))
    i = tirx.Var("i", "int32")
    at = i if lanes == 1 else tirx.Ramp(i * lanes, tirx.const(1, "int32"), lanes)
    store = tirx.BufferStore(y, _chain(levels, tirx.BufferLoad(x, [at])), [at])
    zero, extent = tirx.const(0, "int32"), tirx.const(64 // lanes, "int32")
    loop = tirx.For(i, zero, extent, tirx.ForKind.SERIAL, store)
    return tirx.PrimFunc([x, y], loop).with_attr({"global_symbol": "main", "s_tir": True})


def test_few_levels_stay() -> None:
    func = _function(3)
    tvm.ir.assert_structural_equal(flatten_lets(func).body, func.body)


def test_levels_become_statements() -> None:
    stores: list[tirx.BufferStore] = []
    lets: list[tirx.Let] = []
    tvm_ffi.structural_walk(
        flatten_lets(_function(4)).body,
        [(tirx.BufferStore, stores.append), (tirx.Let, lets.append)],
    )
    assert not lets
    assert [store.buffer.name for store in stores] == [
        "x0_local",
        "x1_local",
        "x2_local",
        "x3_local",
        "y",
    ]


def test_levels_in_a_branch_alone_stay() -> None:
    """A pad computes its value in a branch, as where an int8 layer quantises what it reads."""
    [x, y], i = (tirx.decl_buffer((64,), "float32", name) for name in "xy"), tirx.Var("i", "int32")
    value = _chain(5, tirx.BufferLoad(x, [i]))
    padded = tirx.if_then_else(i < 60, value, tirx.const(0.0, "float32"))
    zero, extent = tirx.const(0, "int32"), tirx.const(64, "int32")
    loop = tirx.For(i, zero, extent, tirx.ForKind.SERIAL, tirx.BufferStore(y, padded, [i]))
    func = tirx.PrimFunc([x, y], loop)
    tvm.ir.assert_structural_equal(flatten_lets(func).body, func.body)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_many_levels_compile_and_compute(lanes: int) -> None:
    built = tvm.tirx.build(
        tvm.IRModule({"main": _function(16, lanes)}),
        target=resolve_target("host", 1).to_tvm(),
        pipeline=CPU_PIPELINE,
    )
    x = np.random.default_rng(0).standard_normal(64).astype("float32")
    got = tvm.runtime.tensor(np.zeros(64, "float32"))
    built["main"](tvm.runtime.tensor(x), got)
    want = x
    for _ in range(16):
        want = np.maximum(1 - want, want / 2)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
