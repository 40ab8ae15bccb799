"""Analysis of a fused TensorIR PrimFunc: its blocks, inlining, and affine indices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.ir import Expr

_DATA_PARALLEL, _REDUCE = 0, 2  # tirx.IterVar.iter_type


class NotThisForm(Exception):  # noqa: N818
    """A PrimFunc does not match a pattern; the message says why."""


@dataclasses.dataclass(frozen=True)
class ComputeBlock:
    """A block that stores each element of a buffer.

    Attributes:
        name: Name hint.
        axes: Block variables.
        extents: Their extents, ints or expressions.
        reduce: For each variable, whether it is a reduction axis.
        buffer: The buffer that is written.
        indices: The indices that are written.
        value: The stored value; of a reduction, the addend.
    """

    name: str
    axes: tuple[tirx.Var, ...]
    extents: tuple[Expr | int, ...]
    reduce: tuple[bool, ...]
    buffer: tirx.Buffer
    indices: tuple[Expr, ...]
    value: Expr

    @property
    def parallel(self) -> list[tirx.Var]:
        """Spatial (data-parallel) variables."""
        return [v for v, r in zip(self.axes, self.reduce, strict=True) if not r]

    def extent(self, axis: tirx.Var) -> Expr | int:
        """Return the extent of one variable."""
        return next(e for v, e in zip(self.axes, self.extents, strict=True) if v.same_as(axis))


def compute_blocks(func: tirx.PrimFunc) -> list[ComputeBlock]:
    """Return the blocks of a PrimFunc from LegalizeOps or FuseTIR, in program order.

    Raises:
        NotThisForm: When the PrimFunc has another structure.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        raise NotThisForm("no root block")
    body = func.body.block.body
    return [
        _compute_block(leaf) for leaf in (body.seq if isinstance(body, tirx.SeqStmt) else [body])
    ]


def _compute_block(stmt: tirx.Stmt) -> ComputeBlock:
    """Return the block of one loop nest."""
    loops = []
    while isinstance(stmt, tirx.For):
        loops.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize):
        raise NotThisForm(f"a {type(stmt).__name__} outside of any block")
    block = stmt.block
    name = str(block.name_hint)
    if len(stmt.iter_values) != len(loops) or not all(
        value.same_as(loop.loop_var) for value, loop in zip(stmt.iter_values, loops, strict=True)
    ):
        raise NotThisForm(f"block {name!r} does not have one loop per axis")
    if block.match_buffers or block.alloc_buffers or not is_one(stmt.predicate):
        raise NotThisForm(f"block {name!r} is conditional, or allocates buffers")
    if any(iv.iter_type not in (_DATA_PARALLEL, _REDUCE) for iv in block.iter_vars):
        raise NotThisForm(f"block {name!r} has an opaque axis")
    store = block.body
    if not isinstance(store, tirx.BufferStore):
        raise NotThisForm(f"block {name!r} has more than one store")
    reduce = tuple(iv.iter_type == _REDUCE for iv in block.iter_vars)
    value = store.value
    if any(reduce):
        value = _added(block, store)
    return ComputeBlock(
        name,
        tuple(iv.var for iv in block.iter_vars),
        tuple(number(iv.dom.extent) for iv in block.iter_vars),
        reduce,
        store.buffer,
        tuple(store.indices),
        value,
    )


def _added(block: s_tir.SBlock, store: tirx.BufferStore) -> Expr:
    """Return the addend of a sum reduction block."""
    name = str(block.name_hint)
    init = block.init
    if not isinstance(init, tirx.BufferStore) or not is_zero(init.value):
        raise NotThisForm(f"block {name!r} is not a sum initialised with zero")
    value = store.value
    if isinstance(value, tirx.Add):
        for old, new in ((value.a, value.b), (value.b, value.a)):
            if isinstance(old, ir.TensorLoad) and old.source.same_as(store.buffer):
                return new
    raise NotThisForm(f"block {name!r} is not a sum")


def number(extent: Expr | int) -> Expr | int:
    """Return a constant as int, anything else unchanged."""
    return int(extent) if isinstance(extent, tirx.IntImm) else extent


def is_one(value: Expr | bool) -> bool:
    """Whether a condition is the constant true."""
    return (isinstance(value, bool) and value) or (
        isinstance(value, tirx.IntImm) and int(value) == 1
    )


def is_zero(value: Expr) -> bool:
    """Whether an expression is a constant zero of any dtype."""
    while isinstance(value, tirx.Cast):
        value = value.value
    return isinstance(value, (tirx.IntImm, tirx.FloatImm)) and float(value.value) == 0.0


class Inliner:
    """Replace loads from intermediate buffers by the expressions that their blocks compute."""

    def __init__(self, found: Sequence[ComputeBlock], keep: tirx.Buffer) -> None:
        self._blocks = [s for s in found if not s.buffer.same_as(keep)]

    def __call__(self, expr: Expr) -> Expr:
        """Return ``expr`` in terms of the parameters and the buffer to keep."""

        def on_load(load: ir.TensorLoad) -> Expr:
            for block in self._blocks:
                if load.source.same_as(block.buffer):
                    return self(self._value(block, tuple(load.indices)))
            return load

        return tvm_ffi.structural_map(expr, (ir.TensorLoad, on_load), order="post")

    def _value(self, block: ComputeBlock, indices: tuple[Expr, ...]) -> Expr:
        """Return the value of a block's output at ``indices``."""
        if any(block.reduce):
            raise NotThisForm(f"a second reduction, {block.name!r}")
        values: dict[tirx.Var, Expr] = {}
        for target, index in zip(block.indices, indices, strict=True):
            if isinstance(target, tirx.IntImm):
                continue
            if not isinstance(target, tirx.Var) or target in values:
                raise NotThisForm(f"block {block.name!r} does not write its elements in order")
            values[target] = index
        for axis, extent in zip(block.axes, block.extents, strict=True):
            if axis not in values:
                if extent != 1:
                    raise NotThisForm(f"block {block.name!r} writes elements more than once")
                values[axis] = tirx.IntImm(str(axis.ty.dtype), 0)
        return replace(block.value, values)


def replace(expr: Expr, values: Mapping[tirx.Var, Expr]) -> Expr:
    """Return ``expr`` with variables replaced by expressions."""
    return tvm_ffi.structural_map(expr, (tirx.Var, lambda v: values.get(v, v)), order="post")


def loads(expr: Expr) -> list[ir.TensorLoad]:
    """Return all loads in ``expr``."""
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append), order="post")
    return found


@dataclasses.dataclass(frozen=True)
class AffineIndex:
    """Sum of axis * coefficient, plus an offset; axes of extent 1 count as zero.

    Attributes:
        factors: The nonzero coefficients by axis.
        offset: The offset.
    """

    factors: dict[tirx.Var, int]
    offset: int

    def is_axis(self, axis: tirx.Var | None, extent: int) -> bool:
        """Whether the index is ``axis``; of extent 1, whether it is zero."""
        wanted = {} if extent == 1 else {axis: 1}
        return not self.offset and self.factors == wanted


def affine(index: Expr, block: ComputeBlock) -> AffineIndex:
    """Decompose an index into the axes of ``block``.

    Raises:
        NotThisForm: When the index is not affine in them.
    """
    analyzer = sym.Analyzer()
    zeros = {a: tirx.IntImm(str(a.ty.dtype), 0) for a in block.axes}
    units = {a: zeros[a] for a, e in zip(block.axes, block.extents, strict=True) if number(e) == 1}
    index = replace(index, units)
    factors: dict[tirx.Var, int] = {}
    for axis in block.axes:
        if axis in units:
            continue
        step = analyzer.simplify(replace(index, {axis: axis + 1}) - index)
        if not isinstance(step, tirx.IntImm):
            raise NotThisForm("an index is not affine")
        if int(step):
            factors[axis] = int(step)
    offset = analyzer.simplify(replace(index, zeros))
    if not isinstance(offset, tirx.IntImm):
        raise NotThisForm("an index is not affine")
    return AffineIndex(factors, int(offset))


@dataclasses.dataclass(frozen=True)
class PaddedLoad:
    """The load of an operand.

    Attributes:
        load: The load.
        condition: Where it is not zero padding; None without padding.
    """

    load: ir.TensorLoad
    condition: Expr | None
