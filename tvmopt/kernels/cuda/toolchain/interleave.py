"""Interleave the cp.async of a later K block with the mma of the current one, one barrier a block.

TVM's software pipeline issues all copies of a K block at once, and waits for the next block's data
before the current one's mma. It needs two barriers. With double-buffered fragments, the next
block's fragments are loaded at the end of the current block. The wait can move there, where mma is
still in flight, and the copies can go between the mma before it. Only statements in the loop over K
blocks are reordered.

Before -> after::

    for step:                                  for step:
        commit:                                    fragments(step, 1); copies(step + 3), some
            sync; copies(step + 3)                 mma(step, 0); commit: the other copies
        wait(2 in flight):                         wait(2 in flight):
            sync                                       sync
            fragments(step, 1); mma(step, 0)           fragments(step + 1, 0)
            fragments(step + 1, 0)                     mma(step, 1)
            mma(step, 1)

The copies overwrite the stage that the previous iteration read, entirely before its barrier.
Without double-buffered fragments, an iteration waits and synchronises first, then copies: also one
barrier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx

_COMMIT, _WAIT = "async_commit_queue_scope", "async_wait_queue_scope"
_COUNT = "async_wait_inflight_count"
_LOAD, _MULTIPLY, _COPY = "ldmatrix", "mma", "cp_async_raw"
_SYNC = "tvm_storage_sync"


def interleave_copies(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Reorder the loop over K blocks of an mma.sync kernel; other loops stay as they are.

    Args:
        func: A lowered device function with asynchronous copies.
    """
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _on_loop), order="post"))


def _on_loop(loop: tirx.For) -> tirx.Stmt:
    """Return ``loop`` with a reordered body, if it is a pipelined loop over K blocks."""
    parts = _flat(loop.body)
    if len(parts) < 2 or not _is_scope(parts[0], _COMMIT) or not _is_scope(parts[1], _WAIT):
        return loop
    commit, wait, *rest = parts
    if not _is_scope(wait.body, _COUNT):
        return loop
    body = _copies_among_mma(commit, wait, rest) or _after_barrier(commit, wait, rest)
    if body is None:
        return loop
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, tirx.SeqStmt(body),
        loop.thread_binding, loop.annotations, loop.step,
    )  # fmt: skip


def _copies_among_mma(
    commit: tirx.AttrStmt, wait: tirx.AttrStmt, rest: Sequence[tirx.Stmt]
) -> list[tirx.Stmt] | None:
    """Return the loop body with copies between its mma; None without double-buffered fragments."""
    binds, copies = _binds_first(_flat(commit.body))
    more, work = _binds_first([*_flat(wait.body.body), *rest])
    found = _divided(copies, work)
    if found is None:
        return None
    copies, sync, main, ahead, last = found
    before, final = _spread(main, [one for copy in copies for one in _unrolled(copy)])
    issued = tirx.AttrStmt(commit.node, _COMMIT, commit.value, final)
    end = _waiting(wait, wait.body.value, tirx.SeqStmt([sync, *ahead, *last]))
    return [*binds, *more, *before, issued, end]


def _after_barrier(
    commit: tirx.AttrStmt, wait: tirx.AttrStmt, rest: Sequence[tirx.Stmt]
) -> list[tirx.Stmt] | None:
    """Return the loop body that waits first, for one more copy; None without its two barriers."""
    binds, copies = _binds_first(_flat(commit.body))
    sync, *work = _flat(wait.body.body)
    count = wait.body.value
    if not copies or _call(copies[0]) != _SYNC or _call(sync) != _SYNC:
        return None
    if any(_call(copy) != _COPY for copy in copies[1:]) or int(count) < 1:
        return None
    begin = _waiting(wait, tirx.IntImm(count.ty.dtype, int(count) - 1), sync)
    issued = tirx.AttrStmt(commit.node, _COMMIT, commit.value, tirx.SeqStmt([*binds, *copies[1:]]))
    return [begin, issued, *work, *rest]


def _waiting(wait: tirx.AttrStmt, count: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
    """Return ``body`` after a wait until at most ``count`` commit groups are in flight."""
    inner = tirx.AttrStmt(wait.body.node, _COUNT, count, body)
    return tirx.AttrStmt(wait.node, _WAIT, wait.value, inner)


def _divided(
    copies: Sequence[tirx.Stmt], work: Sequence[tirx.Stmt]
) -> tuple[list[tirx.Stmt], tirx.Stmt, list[tirx.Stmt], list[tirx.Stmt], list[tirx.Stmt]] | None:
    """Return copies, barrier, and the statements before, in and after the last fragment loads."""
    if len(copies) < 2 or len(work) < 4 or _call(copies[0]) != _SYNC or _call(work[0]) != _SYNC:
        return None
    calls = [_call(stmt) for stmt in work[1:]]
    if set(calls) != {_LOAD, _MULTIPLY} or any(_call(c) != _COPY for c in copies[1:]):
        return None
    end = len(calls) - calls[::-1].index(_LOAD)
    start = end
    while start and calls[start - 1] == _LOAD:
        start -= 1
    # The next block's fragments come last, so two groups of loads have mma between them.
    if _MULTIPLY not in calls[:start] or _LOAD not in calls[:start] or end == len(calls):
        return None
    if calls[0] != _LOAD:
        return None
    rest = list(work[1:])
    return list(copies[1:]), work[0], rest[:start], rest[start:end], rest[end:]


def _spread(
    main: Sequence[tirx.Stmt], copies: Sequence[tirx.Stmt]
) -> tuple[list[tirx.Stmt], tirx.Stmt]:
    """Spread ``copies`` evenly among the mma of ``main``; also return the remaining copies."""
    total = sum(_call(stmt) == _MULTIPLY for stmt in main)
    among: list[tirx.Stmt] = []
    issued = done = 0
    for stmt in main:
        among.append(stmt)
        done += _call(stmt) == _MULTIPLY
        while issued < len(copies) - 1 and (issued + 0.5) * total < done * len(copies):
            among.append(copies[issued])
            issued += 1
    left = list(copies[issued:])
    return among, left[0] if len(left) == 1 else tirx.SeqStmt(left)


def _flat(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    if not isinstance(stmt, tirx.SeqStmt):
        return [stmt]
    return [one for part in stmt.seq for one in _flat(part)]


def _binds_first(stmts: Sequence[tirx.Stmt]) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
    binds = [stmt for stmt in stmts if isinstance(stmt, tirx.Bind)]
    return binds, [stmt for stmt in stmts if not isinstance(stmt, tirx.Bind)]


def _is_scope(stmt: tirx.Stmt, key: str) -> bool:
    return isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == key


def _call(stmt: tirx.Stmt) -> str:
    """Return the last part of the name of the op that ``stmt`` (or its loop body) calls."""
    if isinstance(stmt, tirx.For):
        _, inner = _binds_first(_flat(stmt.body))
        calls = {_call(one) for one in inner}
        return calls.pop() if len(calls) == 1 else ""
    if isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, ir.Call):
        return str(getattr(stmt.value.op, "name", "")).rpartition(".")[2]
    return ""


def _unrolled(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    """Unroll a loop over copies; substitute its bindings."""
    if not isinstance(stmt, tirx.For):
        return [stmt]
    found: list[tirx.Stmt] = []
    for step in range(int(stmt.extent)):
        values = {stmt.loop_var: tirx.IntImm(stmt.loop_var.ty.dtype, int(stmt.min) + step)}
        for part in _flat(stmt.body):
            if isinstance(part, tirx.Bind):
                values[part.var] = _substituted(part.value, values)
            else:
                found += _unrolled(_substituted(part, values))
    return found


def _substituted(value: Any, values: Mapping[tirx.Var, ir.Expr]) -> Any:
    return tvm_ffi.structural_map(value, (tirx.Var, lambda var: values.get(var, var)))
