"""Keep local buffers that LLVM holds in registers on the stack.

before -> after, of a buffer that is accessed at constant places only, always in vectors of one
length::

    x = pool.allocate(64)        x = alloca(64)
    x[0:16] = ...                x[0:16] = ...
    pool.free(x)

TVM takes each local buffer of a CPU kernel from a pool of the thread and gives it back at the end
of its scope. The two calls take some 50 ns at each iteration of the loop around them. Others stay
in the pool: LLVM takes a buffer on the stack apart into its smallest parts, and a GEMM that wrote
vectors of 16 and read vectors of 48 became eight times slower.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from tvmopt.kernels.analysis import variables


def keep_on_stack(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a lowered function whose local buffers of such a kind are on the stack."""
    kept = _in_registers(func)

    def on_alloc(alloc: tirx.AllocBuffer) -> tirx.AllocBuffer:
        if alloc.buffer.scope() != "local" or alloc.buffer not in kept:
            return alloc
        # The annotation tells TVM's lowering to leave the allocation to the code generator.
        return tirx.AllocBuffer(alloc.buffer, {"disable_lower_builtin": tirx.IntImm("bool", 1)})

    return func.with_body(
        tvm_ffi.structural_map(func.body, (tirx.AllocBuffer, on_alloc), order="post")
    )


def _in_registers(func: tirx.PrimFunc) -> set[tirx.Var]:
    """Return the buffers of which all accesses are whole vectors of one length."""
    lengths: dict[tirx.Var, set[int]] = {}

    def access(buffer: tirx.Var, indices: list[ir.Expr]) -> None:
        found = [_whole_vector(index) for index in indices]
        lengths.setdefault(buffer, set()).add(max(found) if all(found) else 0)

    def other_use(expr: ir.Expr) -> None:
        for var in variables(expr):
            lengths.setdefault(var, set()).add(0)

    def call(call: ir.Call) -> None:
        if call.op == ir.Op.get("tirx.address_of"):
            other_use(call)

    tvm_ffi.structural_walk(
        func.body,
        [
            (tirx.BufferStore, lambda store: access(store.buffer, store.indices)),
            (ir.TensorLoad, lambda load: access(load.source, load.indices)),
            (tirx.DeclBuffer, lambda view: other_use(view.data)),
            (ir.Call, call),
        ],
    )
    return {buffer for buffer, found in lengths.items() if len(found) == 1 and 0 not in found}


def _whole_vector(index: ir.Expr) -> int:
    """Return the number of lanes of a constant place, if it is a multiple of them; else 0."""
    if isinstance(index, tirx.IntImm):
        return 1
    if not (isinstance(index, tirx.Ramp) and isinstance(index.base, tirx.IntImm)):
        return 0
    lanes = int(index.lanes)
    return lanes if int(index.base) % lanes == 0 else 0
