"""Remove the second barrier of each iteration where shared memory is double-buffered by registers.

An iteration stores what it has loaded to one buffer while the other is read. The barrier at its
start separates the reads of the first and the stores to the second. TVM does not see that the
buffers are disjoint, and puts another barrier between storing and reading.

Before -> after::

    for step:                                   for step:
        sync                                        sync
        shared[(step + 1) % 2] = registers          shared[(step + 1) % 2] = registers
        registers = memory[step + 2]                registers = memory[step + 2]
        sync
        multiply shared[step % 2]                   multiply shared[step % 2]
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx

#: Annotation of a loop that stores to one of two shared-memory buffers and reads the other.
DOUBLE_BUFFERED = "tvmopt.halves"
_SYNC = "tvm_storage_sync"


def remove_second_barrier(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Remove the second barrier of loops that are annotated with :data:`DOUBLE_BUFFERED`.

    Args:
        func: A lowered device function.
    """
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _on_loop), order="post"))


def _on_loop(loop: tirx.For) -> tirx.Stmt:
    """Return ``loop`` without its second barrier, if it is annotated and has two."""
    if DOUBLE_BUFFERED not in loop.annotations or not _alternates(loop):
        return loop
    parts = _flat(loop.body)
    syncs = [n for n, part in enumerate(parts) if _is_sync(part)]
    inner = [part for part in parts if not _is_sync(part) and _has_sync(part)]
    if len(syncs) != 2 or inner or not _only_binds(parts[: syncs[0]]):
        return loop
    body = [part for n, part in enumerate(parts) if n != syncs[1]]
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, tirx.SeqStmt(body),
        loop.thread_binding, loop.annotations, loop.step,
    )  # fmt: skip


def _alternates(loop: tirx.For) -> bool:
    """Whether ``loop`` indexes by both ``step % 2`` and ``(step + odd) % 2``."""
    found: set[int] = set()
    step = loop.loop_var

    def on_mod(mod: tirx.FloorMod) -> None:
        if not isinstance(mod.b, tirx.IntImm) or int(mod.b) != 2:
            return
        if step.same_as(mod.a):
            found.add(0)
        elif isinstance(mod.a, tirx.Add) and step.same_as(mod.a.a) and _is_odd(mod.a.b):
            found.add(1)

    tvm_ffi.structural_walk(loop.body, (tirx.FloorMod, on_mod), order="post")
    return found == {0, 1}


def _is_odd(value: ir.Expr) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) % 2 == 1


def _flat(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    if not isinstance(stmt, tirx.SeqStmt):
        return [stmt]
    return [one for part in stmt.seq for one in _flat(part)]


def _only_binds(stmts: Sequence[tirx.Stmt]) -> bool:
    return all(isinstance(stmt, tirx.Bind) for stmt in stmts)


def _is_sync(stmt: tirx.Stmt) -> bool:
    return isinstance(stmt, tirx.Evaluate) and _is_sync_call(stmt.value)


def _is_sync_call(value: ir.Expr) -> bool:
    return isinstance(value, ir.Call) and str(getattr(value.op, "name", "")).endswith(_SYNC)


def _has_sync(stmt: tirx.Stmt) -> bool:
    found: list[ir.Call] = []

    def on_call(call: ir.Call) -> None:
        if _is_sync_call(call):
            found.append(call)

    tvm_ffi.structural_walk(stmt, (ir.Call, on_call), order="post")
    return bool(found)
