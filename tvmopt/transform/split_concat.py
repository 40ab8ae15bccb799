"""Split a concatenation of a large copy and a small computed part into one loop nest for each.

before -> after, a KV cache that grows by a token::

    for h, t, d in grid(8, 1025, 128): Y[h, t, d] = new[h, 0, d] if t >= 1024 else past[h, t, d]

    for h, t, d in grid(8, 1024, 128): Y[h, t, d] = past[h, t, d]
    for h, t, d in grid(8, 1, 128): Y[h, 1024 + t, d] = new[h, t, d]

FuseOps fuses the arithmetic that computes ``new``, e.g. a rotary embedding. In one loop nest every
thread that copies the past would contain this arithmetic behind a condition, which keeps it from
copying vectors. In a separate loop nest the past is copied by vectors. Both nests become one
kernel (:mod:`tvmopt.transform.horizontal_fusion`). The pass runs after FuseTIR, on a GPU.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from tvmopt.kernels.analysis import substitute
from tvmopt.kernels.cuda.common.one_launch import DISJOINT_WRITES
from tvmopt.kernels.schedulable import why_not_schedulable

# Most of the output that may be computed; most parts of a concatenation.
_MOST_COMPUTED_SHARE, _MOST_PARTS = 0.125, 8
# Least contiguous bytes of a part: shorter stores would share 32-byte sectors of DRAM.
_LEAST_RUN_BYTES = 64
_IF_THEN_ELSE = ir.Op.get("prim.if_then_else")


@tvm.transform.module_pass(opt_level=0, name="SplitConcat")
class SplitConcat:
    """Split concatenations in TensorIR functions; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every TensorIR function of ``mod``."""
        updates = {}
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and why_not_schedulable(func) is None:
                split = split_concat(func)
                if split is not None:
                    updates[var] = split
        if not updates:
            return mod
        out = mod.clone()
        out.update(tvm.IRModule(updates))
        return out


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of a concatenation.

    Attributes:
        value: What is stored; a function of the block's iterators.
        start: Its first index along the axis of the concatenation.
        end: The index after its last one.
    """

    value: ir.Expr
    start: int
    end: int


def split_concat(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return ``func`` with its concatenation split; None if it has none that is worth it.

    Args:
        func: A function of static shapes, whose last block may concatenate.
    """
    root = func.body.block
    leaves = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    realize = _inner(leaves[-1])
    block = realize.block
    store = block.body
    if len(leaves) < 2 or not isinstance(store, tirx.BufferStore) or block.init is not None:
        return None
    if not any(store.buffer.same_as(param) for param in func.params):
        return None
    if any(_inner(leaf).block.init is not None for leaf in leaves[:-1]):
        return None
    axis = _axis(store)
    if axis is None:
        return None
    parts = list(_parts(store.value, block.iter_vars[axis].var, 0, _extent(block, axis)))
    if not _is_worth_it(func, store, axis, parts):
        return None
    body = tirx.SeqStmt([*leaves[:-1], *(_nest(block, axis, part) for part in parts)])
    new = s_tir.SBlock([], [], [], root.name_hint, body, None, root.alloc_buffers)
    func = func.with_body(s_tir.SBlockRealize([], tirx.IntImm("bool", True), new))
    return func.with_attr(DISJOINT_WRITES, True)


def _inner(stmt: tirx.Stmt) -> s_tir.SBlockRealize:
    """Return the block in a perfect loop nest."""
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    return stmt


def _extent(block: s_tir.SBlock, axis: int) -> int:
    return int(block.iter_vars[axis].dom.extent)


def _axis(store: tirx.BufferStore) -> int | None:
    """Return the axis of the concatenation; None if the value is none."""
    found = _condition(store.value)
    if found is None:
        return None
    places = [n for n, index in enumerate(store.indices) if index.same_as(found[0])]
    return places[0] if len(places) == 1 else None


def _condition(value: ir.Expr) -> tuple[tirx.Var, int] | None:
    """Return ``v`` and ``c`` of ``if_then_else(c <= v, ..., ...)``; None for other expressions."""
    if not isinstance(value, ir.Call) or not value.op.same_as(_IF_THEN_ELSE):
        return None
    test = value.args[0]
    if not isinstance(test, tirx.LE) or not isinstance(test.a, tirx.IntImm):
        return None
    return (test.b, int(test.a)) if isinstance(test.b, tirx.Var) else None


def _parts(value: ir.Expr, var: tirx.Var, start: int, end: int) -> Iterator[_Part]:
    """Yield the parts of a value for ``start <= var < end``, in order."""
    found = _condition(value)
    if found is None or not found[0].same_as(var) or not start < found[1] < end:
        yield _Part(value, start, end)
        return
    _, later, earlier = value.args
    yield from _parts(earlier, var, start, found[1])
    yield from _parts(later, var, found[1], end)


def _is_worth_it(
    func: tirx.PrimFunc, store: tirx.BufferStore, axis: int, parts: list[_Part]
) -> bool:
    """Return whether most of the output is a copy of parameters, and each part is contiguous."""
    if not 2 <= len(parts) <= _MOST_PARTS:
        return False
    shape = [int(extent) for extent in store.buffer.shape]
    row = math.prod(shape[axis + 1 :]) * int(store.buffer.dtype.itemsize)
    if any((part.end - part.start) * row < _LEAST_RUN_BYTES for part in parts):
        return False
    computed = sum(p.end - p.start for p in parts if not _is_copy(func, p.value))
    return 0 < computed <= _MOST_COMPUTED_SHARE * shape[axis]


def _is_copy(func: tirx.PrimFunc, value: ir.Expr) -> bool:
    """Return whether ``value`` is a load of a parameter."""
    return isinstance(value, ir.TensorLoad) and any(value.source.same_as(p) for p in func.params)


def _nest(block: s_tir.SBlock, axis: int, part: _Part) -> tirx.Stmt:
    """Return the loop nest that stores a part."""
    loops: list[tirx.Var] = []
    axes: list[tirx.IterVar] = []
    values: dict[tirx.Var, ir.Expr] = {}
    for n, old in enumerate(block.iter_vars):
        dtype = str(old.var.ty.dtype)
        extent = part.end - part.start if n == axis else int(old.dom.extent)
        var = tirx.Var(old.var.name, dtype)
        domain = ir.Range(tirx.IntImm(dtype, 0), tirx.IntImm(dtype, extent))
        axes.append(tirx.IterVar(domain, var, old.iter_type))
        loops.append(tirx.Var(f"ax{n}", dtype))
        shifted = n == axis and part.start > 0
        values[old.var] = var + tirx.IntImm(dtype, part.start) if shifted else var
    store = block.body
    value = _simplified(substitute(part.value, values), axes)
    indices = [substitute(index, values) for index in store.indices]
    body = tirx.BufferStore(store.buffer, value, indices)
    one = tirx.IntImm(str(axes[0].var.ty.dtype), 1)
    reads = [
        tirx.BufferRegion(load.source, [ir.Range.from_min_extent(i, one) for i in load.indices])
        for load in _loads(value)
    ]
    writes = [tirx.BufferRegion(store.buffer, [ir.Range.from_min_extent(i, one) for i in indices])]
    new = s_tir.SBlock(axes, reads, writes, f"{block.name_hint}_{part.start}", body)
    stmt: tirx.Stmt = s_tir.SBlockRealize(loops, tirx.IntImm("bool", True), new)
    for loop, one_axis in reversed(list(zip(loops, axes, strict=True))):
        stmt = tirx.For(loop, one_axis.dom.min, one_axis.dom.extent, tirx.ForKind.SERIAL, stmt)
    return stmt


def _loads(value: ir.Expr) -> list[ir.TensorLoad]:
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(value, (ir.TensorLoad, found.append), order="post")
    return found


def _simplified(value: ir.Expr, axes: list[tirx.IterVar]) -> ir.Expr:
    """Return ``value`` with the indices of its loads simplified."""
    analyzer = tvm.sym.Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, axis.dom)

    def on_load(load: ir.TensorLoad) -> ir.Expr:
        return tirx.BufferLoad(load.source, [analyzer.simplify(i) for i in load.indices])

    return tvm_ffi.structural_map(value, (ir.TensorLoad, on_load), order="post")
