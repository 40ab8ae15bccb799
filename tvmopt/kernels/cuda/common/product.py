"""GEMM normal form of a sum reduction: C[s, i, j] += A[s, i, k] * B[s, j, k].

Matmul with any order of operand axes, batched or not, and convolution (as implicit GEMM) take one
form. Producers and epilogue stay separate blocks; templates inline them into their copies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.error import InternalError
from tvm.ir import IRModule
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import (
    Axis,
    BlockFacts,
    block_facts,
    leaf_blocks,
    variables,
    why_not_schedulable,
)
from tvmopt.kernels.cuda.common.inlining import inline_producers
from tvmopt.kernels.cuda.common.runs import aligned_run, contiguous_run
from tvmopt.kernels.workload import Refusal, Workload

#: Bytes of the longest vector that a thread loads or stores.
VECTOR_BYTES = 16


@dataclasses.dataclass(frozen=True)
class GemmOperand:
    """One operand of the GEMM.

    Attributes:
        index: Index among the anchor block's reads.
        dtype: Dtype in which it is multiplied.
        size: Bytes of the widest element in memory that it is computed from.
        contiguous: Contiguous axis: ``"k"``, or ``"x"`` for its spatial one (i or j); ``""`` for
            none.
        run: Length of aligned contiguous runs along that axis, in elements: a power of two.
        plain: Whether it is loaded without arithmetic (zero where padded).
        padded: Whether a condition pads it with zeros.
    """

    index: int
    dtype: str
    size: float
    contiguous: str
    run: int
    plain: bool
    padded: bool


@dataclasses.dataclass(frozen=True)
class Product:
    """A function in GEMM normal form.

    Attributes:
        sch: Its schedule; the operands go through copies in the normal form.
        anchor: The GEMM block, with loops ``s, i, j, k``.
        extents: Extents of ``s, i, j, k``.
        a: Operand with the axis ``i``.
        b: Operand with the axis ``j``, along which the output is contiguous.
        sums: Accumulator dtype.
        out: Output dtype.
        out_run: Length of aligned contiguous runs of the output along ``j``: a power of two.
        read: Bytes that the epilogue reads besides the accumulator.
        unique: Bytes of each operand in memory; a convolution reads its image many times.
    """

    sch: s_tir.Schedule
    anchor: SBlockRV
    extents: tuple[int, int, int, int]
    a: GemmOperand
    b: GemmOperand
    sums: str
    out: str
    out_run: int
    read: int
    unique: tuple[int, int]

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
    def copies(self) -> tuple[GemmOperand, GemmOperand]:
        """Both operands."""
        return self.a, self.b


def normalise(func: tirx.PrimFunc) -> Product | Refusal:
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
    outputs = sch.get_output_blocks("root")
    blocks = leaf_blocks(sch)
    reductions = [block for block in blocks if _reduces(sch, block)]
    if len(reductions) != 1 or len(outputs) != 1:
        return Refusal("not one reduction and one output")
    (anchor,) = reductions
    _inline_views(sch, anchor)
    facts = _in_block_order(sch, anchor)
    used = _used(sch, anchor)
    kinds = _kinds(facts, used)
    if kinds is None or not is_product(sch, anchor):
        return Refusal("its reduction is no GEMM")
    if not any(kind in ("i", "j", "s") for kind in kinds):
        return Refusal("a dot product of two vectors is no GEMM")
    innermost = [kind for axis, kind in zip(facts.axes, kinds, strict=True) if _last(facts, axis)]
    swapped = innermost == ["i"]
    if swapped:
        kinds = [{"i": "j", "j": "i"}.get(kind, kind) for kind in kinds]
    extents = [
        math.prod(x.extent for x, kind in zip(facts.axes, kinds, strict=True) if kind == wanted)
        for wanted in "sijk"
    ]
    copies = [sch.reindex(anchor, where) for where in (("read", 0), ("read", 1), ("write", 0))]
    iters = list(sch.get(anchor).iter_vars)
    members = _members(sch, anchor)
    first, second = ("sjk", "sik") if swapped else ("sik", "sjk")
    operands = []
    for n, order in enumerate((first, second)):
        own = [kinds[m] for m in members[n]]
        operands.append(_operand(sch, copies[n], n, own, order[1]))
    output = block_facts(sch, sch.get_output_blocks("root")[0])
    extents_out = [x.extent for x in output.axes]
    last = len(extents_out) - 1
    run = contiguous_run(output.write, extents_out, last) if last >= 0 else 1
    if str(output.write.buffer.dtype) == "bool" or _reads_bools(sch, copies[2]):
        run = 1  # TVM has no bool vectors
    read = _epilogue_bytes(sch, copies[2])
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
    sizes = [_size(access.buffer) for access in facts.reads]
    return Product(
        sch=sch,
        anchor=anchor,
        extents=(extents[0], extents[1], extents[2], extents[3]),
        a=a,
        b=b,
        sums=str(facts.write.buffer.dtype),
        out=str(output.write.buffer.dtype),
        out_run=run,
        read=read,
        unique=(sizes[a.index], sizes[b.index]),
    )


def _reduces(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    return any(iv.iter_type == tirx.IterVar.CommReduce for iv in sch.get(block).iter_vars)


def _inline_views(sch: s_tir.Schedule, anchor: SBlockRV) -> None:
    """Inline producers of operands that only reindex: reshape, transpose."""
    changed = True
    while changed:
        changed = False
        for producer in sch.get_producers(anchor):
            stores = _stores(sch, producer)
            if len(stores) == 1 and isinstance(stores[0].value, ir.TensorLoad):
                try:
                    sch.compute_inline(producer)
                    changed = True
                except ScheduleError:
                    continue


def _last(facts: BlockFacts, axis: Axis) -> bool:
    """Whether the output is contiguous along ``axis``."""
    place = facts.axes.index(axis)
    return not axis.reduce and axis.extent > 1 and facts.write.strides[place] == 1


def _size(buffer: tirx.Buffer) -> int:
    return math.prod(int(e) for e in buffer.shape) * int(buffer.dtype.itemsize)


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


def _members(sch: s_tir.Schedule, anchor: SBlockRV) -> list[list[int]]:
    """Return, for each reindexed access, the axes that index it; unit axes may be missing."""
    found = sch.get(anchor)
    places = {iv.var: n for n, iv in enumerate(found.iter_vars)}
    regions = [*found.reads, *found.writes]
    return [[places[r.min] for r in region.region] for region in regions]


def _stores(sch: s_tir.Schedule, block: SBlockRV) -> list[tirx.BufferStore]:
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(sch.get(block).body, (tirx.BufferStore, stores.append), order="post")
    return stores


def is_product(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether ``block`` accumulates the product of its two reads, cast or not."""
    (store,) = _stores(sch, block)
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


def _operand(
    sch: s_tir.Schedule, copy: SBlockRV, index: int, kinds: Sequence[str], own: str
) -> GemmOperand:
    """Analyse the reads of an operand's copy, with its producers inlined.

    Args:
        sch: The schedule.
        copy: The copy block, as ``reindex`` leaves it.
        index: Index among the anchor's reads.
        kinds: Class of each of the copy's axes.
        own: Class of its spatial axis, ``"i"`` or ``"j"``.
    """
    trial = sch.copy()
    block = trial.get_sblock(sch.get(copy).name_hint)
    inline_producers(trial, block)
    facts = block_facts(trial, block)
    dtype = str(facts.write.buffer.dtype)
    rank = len(facts.axes)
    reads = [r for r in facts.reads if sum(s != 0 for s in r.strides) * 2 > rank]
    best, run = "", 1
    for kind in ("k", own):
        axes = [n for n, k in enumerate(kinds) if k == kind and facts.axes[n].extent > 1]
        if axes and reads:
            found = min(aligned_run(r, facts, axes) for r in reads)
            if found > run:
                best, run = ("k" if kind == "k" else "x"), found
    if not best and reads:
        # No vectors; still prefer coalesced loads by neighbouring threads.
        near = [n for n, a in enumerate(facts.axes) if a.extent > 1 and reads[0].strides[n] == 1]
        longest = max(near, key=lambda n: facts.axes[n].extent, default=-1)
        best = {"k": "k", own: "x"}.get(kinds[longest], "") if near else ""
    value = _stores(trial, block)[0].value
    plain = _is_plain(value) and all(str(r.buffer.dtype) == dtype for r in facts.reads)
    size = max([float(r.buffer.dtype.itemsize) for r in facts.reads] or [1.0])
    padded = any(call.endswith("if_then_else") for call in facts.calls)
    return GemmOperand(index, dtype, size, best, run, plain, padded)


def _is_plain(value: ir.Expr) -> bool:
    """Whether ``value`` is a load, or a choice between a load and zero (padding)."""
    if isinstance(value, ir.Call) and str(getattr(value.op, "name", "")).endswith("if_then_else"):
        _, then, other = value.args
        return (
            _is_plain(then)
            and isinstance(other, tirx.IntImm | tirx.FloatImm)
            and (float(other.value) == 0.0)
        )
    return isinstance(value, ir.TensorLoad)


def _reads_bools(sch: s_tir.Schedule, copy: SBlockRV) -> bool:
    """Whether the epilogue of ``copy`` reads bool tensors."""
    return any(str(buffer.dtype) == "bool" for buffer in _epilogue_reads(sch, copy))


def _epilogue_bytes(sch: s_tir.Schedule, copy: SBlockRV) -> int:
    """Return the bytes that the epilogue reads besides the accumulator ``copy``."""
    return sum(_size(buffer) for buffer in _epilogue_reads(sch, copy))


def _epilogue_reads(sch: s_tir.Schedule, copy: SBlockRV) -> list[tirx.Buffer]:
    """Return the buffers that the epilogue of ``copy`` reads besides its own, block by block."""
    outside: list[tirx.Buffer] = []
    waiting = [copy]
    made = [sch.get(copy).writes[0].source]
    while waiting:
        for block in sch.get_consumers(waiting.pop()):
            found = sch.get(block)
            made.append(found.writes[0].source)
            waiting.append(block)
            for region in found.reads:
                if not any(region.source.same_as(m) for m in made):
                    outside.append(region.source)
    return outside


def _fuse(axes: Sequence[tuple[str, ir.Expr]], order: str) -> tirx.IndexMap:
    """Return the index map that fuses all axes of a class, row-major, in the ``order`` given."""
    inputs = [tirx.Var(f"v{n}", extent.ty) for n, (_, extent) in enumerate(axes)]
    fused: dict[str, ir.Expr] = {}
    for (kind, extent), v in zip(axes, inputs, strict=True):
        if kind:
            fused[kind] = fused[kind] * extent + v if kind in fused else v
    zero = tirx.IntImm(axes[0][1].ty, 0)
    return tirx.IndexMap(inputs, [fused.get(kind, zero) for kind in order], None)


def product_of(func: tirx.PrimFunc) -> Product | Refusal:
    """Return the GEMM normal form of ``func``; a refusal also where TVM rejects a primitive."""
    if (reason := why_not_schedulable(func)) is not None:
        return Refusal(reason)
    try:
        return normalise(func)
    except (ScheduleError, InternalError):
        return Refusal("TVM refuses a schedule primitive of the GEMM normal form")


def gemm_of(workload: Workload) -> Product | Refusal:
    """Return the cached GEMM normal form of ``workload``."""
    return workload.analysed(product_of) or Refusal("not a GEMM")
