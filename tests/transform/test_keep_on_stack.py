"""Local buffers at constant indices lie on the stack; all others come from the thread's pool."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx

from tvmopt.device.target import resolve_target
from tvmopt.kernels.passes.keep_on_stack import keep_on_stack
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE

ZERO = tirx.const(0, "int32")


def _load(buffer: tirx.Var, index: ir.Expr) -> ir.Expr:
    return tirx.BufferLoad(buffer, [index])


def _function(middle: str) -> tirx.PrimFunc:
    """Return ``y = 2 x`` of 64 numbers, with a local buffer that is used as ``middle`` says."""
    x, y = (tirx.decl_buffer((64,), "float32", name) for name in ("x", "y"))
    local = tirx.decl_buffer((4,), "float32", "local", scope="local")
    i = tirx.Var("i", "int32")
    two = tirx.const(2, "float32")
    body: list[tirx.Stmt] = [
        tirx.AllocBuffer(local),
        *(tirx.BufferStore(local, _load(x, i) * two, [tirx.const(n, "int32")]) for n in range(4)),
    ]
    source = local
    if middle == "view":
        source = tirx.decl_buffer((2, 2), "float32", "view", scope="local")
        body.append(tirx.DeclBuffer(source, data=local.data))
    if middle == "address":
        address = tirx.address_of(_load(local, ZERO))
        body.append(tirx.Evaluate(tirx.call_intrin("bool", "tirx.isnullptr", address)))
    place = tirx.FloorMod(i, 4) if middle == "varying index" else ZERO
    indices = [ZERO, ZERO] if middle == "view" else [place]
    body.append(tirx.BufferStore(y, tirx.BufferLoad(source, indices), [i]))
    loop = tirx.For(i, ZERO, tirx.const(64, "int32"), tirx.ForKind.PARALLEL, tirx.SeqStmt(body))
    return tirx.PrimFunc([x, y], loop).with_attr({"global_symbol": "main", "s_tir": True})


def _annotated(func: tirx.PrimFunc) -> list[str]:
    found: list[tirx.AllocBuffer] = []
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, found.append))
    return [alloc.buffer.name for alloc in found if alloc.annotations]


@pytest.mark.parametrize(
    ("middle", "kept"),
    [("constant index", ["local"]), ("varying index", []), ("view", []), ("address", [])],
)
def test_only_constant_indices_are_kept(middle: str, kept: list[str]) -> None:
    assert _annotated(keep_on_stack(_function(middle))) == kept


@pytest.mark.parametrize(("middle", "pooled"), [("constant index", False), ("varying index", True)])
def test_the_pool_is_not_called_for_kept_buffers(middle: str, pooled: bool) -> None:
    target = resolve_target("host", 2).to_tvm()
    built = tvm.tirx.build(_function(middle), target=target, pipeline=CPU_PIPELINE)
    assert ("TVMBackendAllocWorkspace" in built.inspect_source("ll")) == pooled
    x, y = (tvm.runtime.tensor(np.arange(64, dtype="float32")) for _ in range(2))
    built["main"](x, y)
    np.testing.assert_array_equal(y.numpy(), 2 * x.numpy())
