"""GEMM normal form of a sum reduction: C[s, i, j] += A[s, i, k] * B[s, j, k].

Matmul with any order of operand axes, batched or not, and convolution (as implicit GEMM) take one
form. Producers and epilogue stay separate blocks; templates inline them into their copies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tvm import ir, s_tir, tirx
from tvm.error import InternalError
from tvm.ir import IRModule
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import SBlockRV

from tvmopt.device.dtypes import itemsize
from tvmopt.kernels.analysis import (
    Axis,
    BlockFacts,
    block_facts,
    leaf_blocks,
    variables,
)
from tvmopt.kernels.cuda.common.gemm_operand import (
    VECTOR_BYTES,
    GemmOperand,
    epilogue_inputs,
    gemm_operand,
    output_run,
    stores,
)
from tvmopt.kernels.cuda.common.traffic import size_of
from tvmopt.kernels.schedulable import why_not_schedulable
from tvmopt.kernels.tf32 import allows_tf32
from tvmopt.kernels.workload import Refusal, Workload


@dataclasses.dataclass(frozen=True)
class GemmForm:
    """A function in GEMM normal form.

    Attributes:
        sch: Its schedule; the operands go through copies in the normal form.
        anchor: The GEMM block, with loops ``s, i, j, k``.
        extents: Extents of ``s, i, j, k``.
        a: Operand with the axis ``i``.
        b: Operand with the axis ``j``, along which the output is contiguous.
        accumulator: Accumulator dtype.
        out: Output dtype.
        out_run: Length of aligned contiguous runs of the output along ``j``: a power of two.
        epilogue_bytes: Bytes that the epilogue reads besides the accumulator.
        operand_bytes: Bytes of each operand in memory; a convolution reads its image many times.
        allow_tf32: Whether tensor cores may read float32 operands as TF32.
        image_row: Extent of the last axis that ``i`` fuses: output columns of a convolution.
    """

    sch: s_tir.Schedule
    anchor: SBlockRV
    extents: tuple[int, int, int, int]
    a: GemmOperand
    b: GemmOperand
    accumulator: str
    out: str
    out_run: int
    epilogue_bytes: int
    operand_bytes: tuple[int, int]
    allow_tf32: bool = False
    image_row: int = 1

    def ragged(self, operand: GemmOperand, tile: int, step: int) -> bool:
        """Whether tiles of ``operand`` exceed its extents.

        Args:
            operand: ``a`` or ``b``.
            tile: Rows, or columns, of a tile.
            step: Elements of K of which each slice is a multiple.
        """
        edge = self.extents[1] if operand is self.a else self.extents[2]
        return bool(edge % tile or self.extents[3] % step)

    @property
    def store_elements(self) -> int:
        """Elements of the widest vector in which outputs, or partial sums, are stored."""
        return max(1, int(VECTOR_BYTES / max(itemsize(self.out), itemsize(self.accumulator))))

    @property
    def operands(self) -> tuple[GemmOperand, GemmOperand]:
        """Both operands."""
        return self.a, self.b


def gemm_form(func: tirx.PrimFunc) -> GemmForm | Refusal:
    """Return the GEMM normal form of ``func``; a refusal also where TVM rejects a primitive."""
    if (reason := why_not_schedulable(func)) is not None:
        return Refusal(reason)
    try:
        return normalise(func)
    except (ScheduleError, InternalError):
        return Refusal("TVM refuses a schedule primitive of the GEMM normal form")


def gemm_form_of(workload: Workload) -> GemmForm | Refusal:
    """Return the cached GEMM normal form of ``workload``."""
    return workload.analysed(gemm_form) or Refusal("not a GEMM")


def normalise(func: tirx.PrimFunc) -> GemmForm | Refusal:
    """Bring ``func`` into GEMM normal form.

    Before -> after::

        for y, x, o: for r, c: Y[y, x, o] += X[y + r, x, c] * W[r, c, o]

        for i, k: A[0, i, k] = X[i // W + k // C, i % W, k % C]
        for j, k: B[0, j, k] = W[k // C, k % C, j]
        for i, j: for k: S[0, i, j] += A[0, i, k] * B[0, j, k]
        for y, x, o: Y[y, x, o] = S[0, y * W + x, o]

    A reduction without rows, columns or K, of extent 1 and in no index, is no GEMM.
    """
    sch = s_tir.Schedule(IRModule({"main": func}))
    reductions = [block for block in leaf_blocks(sch) if _reduces(sch, block)]
    if len(reductions) != 1 or len(sch.get_output_blocks("root")) != 1:
        return Refusal("not one reduction and one output")
    (anchor,) = reductions
    _inline_views(sch, anchor)
    facts = _in_block_order(sch, anchor)
    kinds = _kinds(facts, _used(sch, anchor))
    if kinds is None or not _multiplies_and_adds(sch, anchor):
        return Refusal("its reduction is no GEMM")
    if not any(kind in ("i", "j", "s") for kind in kinds):
        return Refusal("a dot product of two vectors is no GEMM")
    # The output must be contiguous along j.
    innermost = [kind for axis, kind in zip(facts.axes, kinds, strict=True) if _last(facts, axis)]
    swapped = innermost == ["i"]
    if swapped:
        kinds = [{"i": "j", "j": "i"}.get(kind, kind) for kind in kinds]
    s, i, j, k = (
        math.prod(x.extent for x, kind in zip(facts.axes, kinds, strict=True) if kind == wanted)
        for wanted in "sijk"
    )
    copies = [sch.reindex(anchor, where) for where in (("read", 0), ("read", 1), ("write", 0))]
    iters = list(sch.get(anchor).iter_vars)
    members = _members(sch, anchor)
    first, second = ("sjk", "sik") if swapped else ("sik", "sjk")
    operands = []
    for n, order in enumerate((first, second)):
        own = [kinds[m] for m in members[n]]
        operands.append(gemm_operand(sch, copies[n], n, own, order[1]))
    run = output_run(sch, copies[2])
    epilogue_bytes = sum(size_of(buffer) for buffer in epilogue_inputs(sch, copies[2]))
    output = sch.get(sch.get_output_blocks("root")[0]).writes[0].source
    for n, order in enumerate((first, second, "sij")):
        axes = [(kinds[m], iters[m].dom.extent) for m in members[n]]
        sch.transform_layout(copies[n], ("read" if n == 2 else "write", 0), _fuse(axes, order))
    whole = [(kind, iv.dom.extent) for kind, iv in zip(kinds, iters, strict=True)]
    sch.transform_block_layout(anchor, _fuse(whole, "sijk"))
    block = sch.get(anchor)
    regions = [*block.reads, *block.writes]
    if not all(isinstance(r.min, tirx.Var) for x in regions for r in x.region[1:]):
        return Refusal("TVM drops a unit axis of the GEMM, which cannot be padded")
    a, b = reversed(operands) if swapped else operands
    last_rows = [iv.dom.extent for kind, iv in zip(kinds, iters, strict=True) if kind == "i"][-1:]
    sizes = [size_of(access.buffer) for access in facts.reads]
    return GemmForm(
        sch=sch,
        anchor=anchor,
        extents=(s, i, j, k),
        a=a,
        b=b,
        accumulator=str(facts.write.buffer.dtype),
        out=str(output.dtype),
        out_run=run,
        epilogue_bytes=epilogue_bytes,
        operand_bytes=(sizes[a.index], sizes[b.index]),
        allow_tf32=allows_tf32(func),
        image_row=int(last_rows[0]) if last_rows else 1,
    )


def _reduces(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    return any(iv.iter_type == tirx.IterVar.CommReduce for iv in sch.get(block).iter_vars)


def _inline_views(sch: s_tir.Schedule, anchor: SBlockRV) -> None:
    """Inline producers of operands that only reindex: reshape, transpose."""
    changed = True
    while changed:
        changed = False
        for producer in sch.get_producers(anchor):
            found = stores(sch, producer)
            if len(found) == 1 and isinstance(found[0].value, ir.TensorLoad):
                try:
                    sch.compute_inline(producer)
                    changed = True
                except ScheduleError:
                    continue


def _in_block_order(sch: s_tir.Schedule, block: SBlockRV) -> BlockFacts:
    """Return the facts of ``block`` with its reads in the order of schedule primitives."""
    facts = block_facts(sch, block)
    order = [region.source for region in sch.get(block).reads]
    reads = [r for buffer in order for r in facts.reads if r.buffer.same_as(buffer)]
    return dataclasses.replace(facts, reads=tuple(reads))


def _used(sch: s_tir.Schedule, block: SBlockRV) -> list[set[tirx.Var]]:
    """Return, for each read and the write, the variables in its indices, unit axes included."""
    found = sch.get(block)
    regions = [*found.reads, *found.writes]
    return [set().union(*(variables(r.min) for r in region.region)) for region in regions]


def _kinds(facts: BlockFacts, used: Sequence[set[tirx.Var]]) -> list[str] | None:
    """Classify each axis as ``s, i, j`` or ``k``; None when one fits no class."""
    if len(facts.reads) != 2 or len(used) != 3 or facts.stores != 1 or any(facts.conditional):
        return None
    if facts.reads[0].buffer.same_as(facts.reads[1].buffer):
        return None
    in_a, in_b, in_c = used
    kinds = []
    for axis in facts.axes:
        member = axis.var in in_a, axis.var in in_b, axis.var in in_c
        if axis.reduce:
            kind = "k" if member[:2] == (True, True) else ""
        else:
            kind = {
                (True, True, True): "s",
                (True, False, True): "i",
                (False, True, True): "j",
            }.get(member, "")
        if not kind and axis.extent > 1:
            return None
        kinds.append(kind)
    # A unit axis that some access omits has no class; a class without axes has extent 1.
    return kinds if "k" in kinds else None


def _last(facts: BlockFacts, axis: Axis) -> bool:
    """Whether the output is contiguous along ``axis``."""
    place = facts.axes.index(axis)
    return not axis.reduce and axis.extent > 1 and facts.write.strides[place] == 1


def _members(sch: s_tir.Schedule, anchor: SBlockRV) -> list[list[int]]:
    """Return, for each reindexed access, the axes that index it; unit axes may be missing."""
    found = sch.get(anchor)
    places = {iv.var: n for n, iv in enumerate(found.iter_vars)}
    regions = [*found.reads, *found.writes]
    return [[places[r.min] for r in region.region] for region in regions]


def _multiplies_and_adds(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether ``block`` accumulates the product of its two reads, cast or not."""
    (store,) = stores(sch, block)
    value = store.value
    if not isinstance(value, tirx.Add):
        return False
    for total, product in ((value.a, value.b), (value.b, value.a)):
        if isinstance(total, ir.TensorLoad) and total.source.same_as(store.buffer):
            product = _uncast(product)
            if isinstance(product, tirx.Mul):
                return all(isinstance(_uncast(x), ir.TensorLoad) for x in (product.a, product.b))
    return False


def _uncast(value: ir.Expr) -> ir.Expr:
    while isinstance(value, tirx.Cast):
        value = value.value
    return value


def _fuse(axes: Sequence[tuple[str, ir.Expr]], order: str) -> tirx.IndexMap:
    """Return the index map that fuses all axes of a class, row-major, in the ``order`` given."""
    inputs = [tirx.Var(f"v{n}", extent.ty) for n, (_, extent) in enumerate(axes)]
    fused: dict[str, ir.Expr] = {}
    for (kind, extent), v in zip(axes, inputs, strict=True):
        if kind:
            fused[kind] = fused[kind] * extent + v if kind in fused else v
    zero = tirx.IntImm(axes[0][1].ty, 0)
    return tirx.IndexMap(inputs, [fused.get(kind, zero) for kind in order], None)
