"""Operands in the bodies of ``Let`` expressions are bound before them."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, tirx

from tests.kernels.cpu.harness import lower
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.passes.load_before_lets import load_before_lets
from tvmopt.kernels.module_schedules import schedule_module

_A, _B, _Y = (tirx.decl_buffer((8,), "float32", name) for name in "aby")
_I = tirx.Var("i", "int64")
_F = tirx.Var("f", "float32")


def _store(value: tirx.PrimExpr) -> tirx.BufferStore:
    return tirx.BufferStore(_Y, value, [_I])


def _gate() -> tirx.PrimExpr:
    return tirx.sigmoid(_A[_I])


def test_an_operand_is_bound_first() -> None:
    got = load_before_lets(_store(tirx.Let(_F, _gate(), _F * (_B[_I] + tirx.const(1.0)))))
    bound = tirx.Var("b", "float32")
    wanted = tirx.Let(bound, _B[_I] + tirx.const(1.0), tirx.Let(_F, _gate(), _F * bound))
    tvm.ir.assert_structural_equal(got, _store(wanted), map_free_vars=True)


def test_an_operand_of_a_let_variable_stays() -> None:
    store = _store(tirx.Let(_F, _gate(), _F + tirx.const(1.0)))
    tvm.ir.assert_structural_equal(load_before_lets(store), store)


def test_a_guarded_operand_stays() -> None:
    inside = tirx.if_then_else(_I < 4, _B[_I], tirx.const(0.0))
    store = _store(tirx.Let(_F, _gate(), _F * inside))
    tvm.ir.assert_structural_equal(load_before_lets(store), store)


def test_a_store_without_let_stays() -> None:
    store = _store(_gate() * _B[_I])
    tvm.ir.assert_structural_equal(load_before_lets(store), store)


def test_a_gated_bfloat16_gemm_compiles() -> None:
    """The gated operand and the result have an index in common, which TVM defined too late."""
    rng = np.random.default_rng(0)
    bias, weight = (rng.standard_normal(s).astype("float32") for s in ((256,), (128, 256)))

    def body(a: relax.Expr, gated: relax.Expr) -> relax.Expr:
        narrow = relax.op.astype(relax.const(weight), "bfloat16")
        logits = relax.op.matmul(a, narrow, out_dtype="float32")
        gate = relax.op.sigmoid(relax.op.add(logits, relax.const(bias)))
        product = relax.op.multiply(gate, relax.op.astype(gated, "float32"))
        return relax.op.astype(product, "bfloat16")

    target = resolve_target("znver4", 2)
    inputs = [((1999, 128), "bfloat16"), ((1999, 256), "bfloat16")]
    scheduled, _ = schedule_module(lower(body, inputs), target.arch())
    kernels = {
        var.name_hint: func.with_attr("global_symbol", var.name_hint)
        for var, func in scheduled.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }
    built = tvm.tirx.build(tvm.IRModule(kernels), target=target.to_tvm(), pipeline="s_tir")
    assert "vdpbf16ps" in built.inspect_source("asm")
