"""Static analysis of a PrimFunc's blocks: iterators, access strides and work.

No function here changes its argument. A *block* is a leaf ``SBlock`` as LegalizeOps creates it: one
store (several for tuple reductions such as argmax) in a perfect loop nest, one loop per iterator.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.cpu.passes.vector_math import math_depth

# Blocks whose facts are kept. A schedule never changes a block that is referenced elsewhere.
_KEPT_FACTS = 8192
_DATA_PARALLEL, _REDUCE = 0, 2  # tirx.IterVar.iter_type
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)


@dataclasses.dataclass(frozen=True)
class Axis:
    """One block iterator.

    Attributes:
        var: Its variable.
        extent: Its constant extent.
        reduce: Whether it is a reduction axis; otherwise it is data-parallel.
    """

    var: tirx.Var
    extent: int
    reduce: bool


@dataclasses.dataclass(frozen=True)
class Access:
    """One read or write of a buffer, as a flat row-major offset.

    Attributes:
        buffer: The buffer.
        strides: Stride in elements for each block axis; None where it is not a constant (gather,
            division that does not simplify, ...).
        offset: The flat offset, in elements.
    """

    buffer: tirx.Buffer
    strides: tuple[int | None, ...]
    offset: ir.Expr


@dataclasses.dataclass(frozen=True)
class BlockFacts:
    """Analysis result for one block.

    Attributes:
        name: The block's name hint.
        axes: Its iterators, outermost loop first.
        reads: Its loads, except loads from buffers that the block itself writes.
        write: Its first store.
        conditional: For each axis, whether the condition of an ``if_then_else`` uses it. TVM
            scalarises a vectorised loop over such an axis. (``Select`` is harmless.)
        calls: Names of the calls in the body (``tirx.exp``, ...).
        stores: Number of stores in the body; a tuple reduction has more than one.
        size: Number of expressions in the body.
        math_depth: Nesting depth of the functions that :mod:`.vector_math` rewrites.
        dtype: The widest dtype in the body.
        divides: Whether the body divides loaded integers; no CPU has a vector instruction for it.
    """

    name: str
    axes: tuple[Axis, ...]
    reads: tuple[Access, ...]
    write: Access
    conditional: tuple[bool, ...]
    calls: frozenset[str]
    stores: int
    size: int
    math_depth: int
    dtype: str
    divides: bool

    @property
    def spatial(self) -> list[int]:
        """Indices of the data-parallel axes, one for each dimension of the written buffer.

        Block transforms turn reduction axes of extent 1 into further data-parallel axes; these are
        left out.
        """
        parallel = [i for i, a in enumerate(self.axes) if not a.reduce]
        return parallel[: len(self.write.buffer.shape)]

    @property
    def reduction(self) -> list[int]:
        """Indices of the reduction axes."""
        return [i for i, a in enumerate(self.axes) if a.reduce]

    @property
    def work(self) -> int:
        """Number of iterations of the block."""
        return math.prod(a.extent for a in self.axes)

    @property
    def reduced(self) -> int:
        """Reduction length: iterations of the reduction axes for one output element."""
        return math.prod(a.extent for a in self.axes if a.reduce)


def leaf_blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    """Return the blocks under the root block of ``main``, in program order."""
    return sch.get_child_blocks(sch.get_sblock("root"))


def all_facts(sch: s_tir.Schedule) -> list[BlockFacts]:
    """Return the facts of every leaf block, in program order."""
    return [block_facts(sch, block) for block in leaf_blocks(sch)]


def block_facts(sch: s_tir.Schedule, block_rv: SBlockRV) -> BlockFacts:
    """Analyse one block."""
    return _facts_of(sch.get(block_rv))


@functools.lru_cache(maxsize=_KEPT_FACTS)
def _facts_of(block: s_tir.SBlock) -> BlockFacts:
    axes = tuple(
        Axis(iv.var, int(iv.dom.extent), iv.iter_type == _REDUCE) for iv in block.iter_vars
    )
    stores: list[tirx.BufferStore] = []
    loads: list[ir.TensorLoad] = []
    conditions: list[ir.Expr] = []
    calls: set[str] = set()
    divisions: list[ir.Expr] = []
    dtypes: list[tvm_ffi.dtype] = []

    def on_call(call: ir.Call) -> None:
        name = getattr(call.op, "name", "")
        calls.add(name)
        if name.endswith(".if_then_else"):
            conditions.append(call.args[0])

    tvm_ffi.structural_walk(
        block.body,
        [
            (tirx.BufferStore, stores.append),
            (ir.TensorLoad, loads.append),
            (ir.Call, on_call),
            (tirx.Cast, lambda cast: dtypes.append(cast.ty.dtype)),
            *((kind, divisions.append) for kind in _DIVISIONS),
        ],
        order="post",
    )
    size = 0

    def count(_: ir.Expr) -> None:
        nonlocal size
        size += 1

    tvm_ffi.structural_walk(block.body, (ir.Expr, count), order="post")
    analyzer = sym.Analyzer()
    for iv in block.iter_vars:
        analyzer.bind(iv.var, iv.dom)
    written = [s.buffer for s in stores]
    dtypes += [*(s.buffer.dtype for s in stores), *(load.source.dtype for load in loads)]
    in_condition = set().union(*(variables(c) for c in conditions)) if conditions else set()
    return BlockFacts(
        name=block.name_hint,
        axes=axes,
        reads=tuple(
            _access(load.source, load.indices, axes, analyzer)
            for load in loads
            if not any(load.source.same_as(buffer) for buffer in written)
        ),
        write=_access(stores[0].buffer, stores[0].indices, axes, analyzer),
        conditional=tuple(a.var in in_condition for a in axes),
        calls=frozenset(calls),
        stores=len(stores),
        size=size,
        math_depth=math_depth(block.body) if calls else 0,
        dtype=max((str(d) for d in dtypes), key=_bits),
        divides=any(_loads_integers(division) for division in divisions),
    )


def _bits(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)
    return int(digits.group()) if digits else 8


def _loads_integers(expr: ir.Expr) -> bool:
    """Return whether ``expr`` is an integer expression with a load (index arithmetic has none)."""
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append), order="post")
    return bool(found) and "int" in str(expr.ty.dtype)


def variables(expr: ir.Expr) -> set[tirx.Var]:
    """Return the free variables of ``expr``."""
    found: set[tirx.Var] = set()
    tvm_ffi.structural_walk(expr, (tirx.Var, found.add), order="post")
    return found


def row_major_offset(indices: Sequence[Any], shape: Sequence[Any]) -> Any:
    """Return the offset of an element, in elements; there is at least one index."""
    offset = indices[0]
    for index, extent in zip(indices[1:], shape[1:], strict=True):
        offset = offset * extent + index
    return offset


def _access(
    buffer: tirx.Buffer, indices: Sequence[Any], axes: tuple[Axis, ...], analyzer: sym.Analyzer
) -> Access:
    if not indices:  # 0-d buffer: every axis broadcasts
        return Access(buffer, (0,) * len(axes), tirx.IntImm("int64", 0))
    offset = analyzer.simplify(row_major_offset(indices, buffer.shape))
    return Access(buffer, _strides(offset, axes, analyzer), offset)


def _strides(
    offset: ir.Expr, axes: tuple[Axis, ...], analyzer: sym.Analyzer
) -> tuple[int | None, ...]:
    """Return what each axis adds to ``offset`` in one step; None where that is not a constant."""
    linear = sym.detect_linear_equation(offset, [axis.var for axis in axes])
    factors = list(linear)[:-1]  # the last one is what no axis adds to
    if linear and all(isinstance(factor, tirx.IntImm) for factor in factors):
        return tuple(map(int, factors))
    used = variables(offset)
    strides: list[int | None] = []
    for axis in axes:
        if axis.var not in used:
            strides.append(0)
            continue
        step = analyzer.simplify(substitute(offset, {axis.var: axis.var + 1}) - offset)
        strides.append(int(step) if isinstance(step, tirx.IntImm) else None)
    return tuple(strides)


def constant_run(access: Access, axis: Axis) -> int:
    """Return the longest aligned run of ``axis`` over which ``access`` keeps its address.

    Returns:
        A divisor of the axis's extent: 64 for the input of a grouped convolution with 64 output
        channels per group, along the output channels; 1 when every step moves the address.
    """
    dtype = str(axis.var.ty.dtype)
    for run in range(axis.extent, 1, -1):
        if axis.extent % run:
            continue
        part, place = tirx.Var("part", dtype), tirx.Var("place", dtype)
        analyzer = sym.Analyzer()
        analyzer.bind(part, ir.Range(0, axis.extent // run))
        analyzer.bind(place, ir.Range(0, run))
        moved = substitute(access.offset, {axis.var: part * run + place})
        still = substitute(access.offset, {axis.var: part * run})
        if analyzer.can_prove_equal(moved, still):
            return run
    return 1


def substitute(expr: ir.Expr, values: Mapping[tirx.Var, ir.Expr]) -> ir.Expr:
    """Return ``expr`` with its variables replaced by ``values``."""
    return tvm_ffi.structural_map(expr, (tirx.Var, lambda v: values.get(v, v)), order="post")
