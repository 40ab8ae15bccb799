"""Copies of a later step spread among the products of the present one, one barrier a step.

TVM's software pipeline issues all copies of a step at once, waits for the next step's data before
the present one is multiplied, and lets all threads meet twice. Where fragments are loaded ahead,
what a step needs of the next one is loaded at its end: so it can wait there, while products are
still under way, and copies can go between products before that. Only the order of statements
changes, in the loop over steps alone.

before -> after::

    for step:                                  for step:
        commit:                                    fragments(step, 1); copies(step + 3), some
            sync; copies(step + 3)                 products(step, 0); commit: copies, the others
        wait(2 in flight):                         wait(2 in flight):
            sync                                       sync
            fragments(step, 1); products(step, 0)      fragments(step + 1, 0)
            fragments(step + 1, 0)                     products(step, 1)
            products(step, 1)

The copies overwrite what was read in the step before, all of it before that step's barrier. Where
fragments are not loaded ahead, a step waits and meets first, then copies: one barrier, too.
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
    """Reorder the loop over steps of a kernel of warps on tensor cores; others stay as they are.

    Args:
        func: A lowered device function, its copies asynchronous.
    """
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _on_loop), order="post"))


def _on_loop(loop: tirx.For) -> tirx.Stmt:
    parts = _flat(loop.body)
    if len(parts) < 2 or not _is_scope(parts[0], _COMMIT) or not _is_scope(parts[1], _WAIT):
        return loop
    commit, wait, *rest = parts
    if not _is_scope(wait.body, _COUNT):
        return loop
    body = _among_products(commit, wait, rest) or _after_barrier(commit, wait, rest)
    if body is None:
        return loop
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, tirx.SeqStmt(body),
        loop.thread_binding, loop.annotations, loop.step,
    )  # fmt: skip


def _among_products(
    commit: tirx.AttrStmt, wait: tirx.AttrStmt, rest: Sequence[tirx.Stmt]
) -> list[tirx.Stmt] | None:
    """A step with its copies among its products; None unless it loads fragments ahead."""
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
    """A step that waits first, for one copy more, and meets once; None where it has no barriers."""
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
    """``body`` once no more than ``count`` copies are under way."""
    inner = tirx.AttrStmt(wait.body.node, _COUNT, count, body)
    return tirx.AttrStmt(wait.node, _WAIT, wait.value, inner)


def _divided(
    copies: Sequence[tirx.Stmt], work: Sequence[tirx.Stmt]
) -> tuple[list[tirx.Stmt], tirx.Stmt, list[tirx.Stmt], list[tirx.Stmt], list[tirx.Stmt]] | None:
    """Copies, barrier, and what comes before, in and after the last loads of fragments."""
    if len(copies) < 2 or len(work) < 4 or _call(copies[0]) != _SYNC or _call(work[0]) != _SYNC:
        return None
    calls = [_call(stmt) for stmt in work[1:]]
    if set(calls) != {_LOAD, _MULTIPLY} or any(_call(c) != _COPY for c in copies[1:]):
        return None
    end = len(calls) - calls[::-1].index(_LOAD)
    start = end
    while start and calls[start - 1] == _LOAD:
        start -= 1
    # Fragments of the next step come last, so there are two loads with products between them.
    if _MULTIPLY not in calls[:start] or _LOAD not in calls[:start] or end == len(calls):
        return None
    if calls[0] != _LOAD:
        return None
    rest = list(work[1:])
    return list(copies[1:]), work[0], rest[:start], rest[start:end], rest[end:]


def _spread(
    main: Sequence[tirx.Stmt], copies: Sequence[tirx.Stmt]
) -> tuple[list[tirx.Stmt], tirx.Stmt]:
    """``main`` with ``copies`` among its products, evenly; and the copies that are left."""
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
    """The last word of the name of what ``stmt`` calls, in a loop or not; empty without a call."""
    if isinstance(stmt, tirx.For):
        _, inner = _binds_first(_flat(stmt.body))
        calls = {_call(one) for one in inner}
        return calls.pop() if len(calls) == 1 else ""
    if isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, ir.Call):
        return str(getattr(stmt.value.op, "name", "")).rpartition(".")[2]
    return ""


def _unrolled(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    """The steps of a loop over copies one by one, without names for parts of their places."""
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
