"""Tests of the report of used instructions, and of an intrinsic inside a ragged tile."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import ir, te, tirx

from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.intrinsics import DOTS, instructions_used
from tvmopt.kernels.cpu.intrinsics.used import _instructions
from tvmopt.kernels.emit import emit
from tvmopt.kernels.policies import DefaultPolicy

VNNI = resolve_target("cascadelake", 1)
ROWS, COLUMNS, DEPTH = 23, 32, 64


def product() -> tirx.PrimFunc:
    rows, columns, depth = (tirx.IntImm("int64", n) for n in (ROWS, COLUMNS, DEPTH))
    data = te.placeholder((rows, depth), "uint8", "data")
    weight = te.placeholder((depth, columns), "int8", "weight")
    k = te.reduce_axis((tirx.IntImm("int64", 0), depth), "k")
    sums = te.compute(
        (rows, columns),
        lambda i, j: te.sum(data[i, k].astype("int32") * weight[k, j].astype("int32"), axis=k),
    )
    return te.create_prim_func([data, weight, sums]).with_attr("layout_free_buffers", [1])


def ragged():
    """Schedule the matmul with a ragged last row tile, before the finishing passes."""
    func = product()
    hints = (ranked.hint for ranked in DefaultPolicy(func, VNNI.arch()).ranked)
    hint = next(h for h in hints if h.template == "register_tile" and h.intrinsic)
    hint = dataclasses.replace(hint, register_tile=(5, 32), k_block=0, loops_in_k_block=0)
    return func, emit(func, hint).mod["main"]


def test_a_ragged_tile_uses_the_instruction():
    func, scheduled = ragged()
    assert instructions_used(finish(scheduled, func)) == ("vpdpbusd",)


def test_what_is_not_scheduled_uses_none():
    assert instructions_used(product()) == ()


@pytest.mark.skipif(bool(VNNI.missing_on_host()), reason="this machine lacks AVX512-VNNI")
def test_its_numbers_are_those_of_numpy():
    func, scheduled = ragged()
    kernel = finish(scheduled, func).with_attr("global_symbol", "main")
    built = tvm.tirx.build(tvm.IRModule({"main": kernel}), target=VNNI.to_tvm())
    assert "vpdpbusd" in built.inspect_source("asm")
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (ROWS, DEPTH), dtype=np.uint8)
    w = random.integers(-128, 128, (DEPTH, COLUMNS), dtype=np.int8)
    out = tvm.runtime.tensor(np.zeros((ROWS, COLUMNS), np.int32))
    built["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w), out)
    np.testing.assert_array_equal(out.numpy(), x.astype("int32") @ w.astype("int32"))


def test_every_dot_product_is_known_by_what_it_calls():
    known = _instructions()
    assert {dot.instruction for dot in DOTS} == set(known.values())


def test_a_call_of_another_function_is_no_instruction():
    call = tirx.Evaluate(tirx.call_extern("int32", "something_else"))
    assert isinstance(call.value, ir.Call)
    func = tirx.PrimFunc([], call)
    assert instructions_used(func) == ()
