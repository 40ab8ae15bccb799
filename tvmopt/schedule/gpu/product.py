"""A sum of products made ready for a GPU: C[s, i, j] += A[s, i, k] * B[s, j, k].

Matmul in any order of its operands' axes, batched or not, and convolution (as implicit GEMM) become
one form. What surrounds the product stays where it is; templates draw it into their copies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import IRModule
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import SBlockRV

from tvmopt.schedule.analysis import Access, BlockFacts, block_facts, leaf_blocks, variables

#: Elements of the longest vector that a thread moves at once, by their bytes: 16 bytes.
VECTOR_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Operand:
    """One factor of the product.

    Attributes:
        dtype: Type of its elements in memory, before what a prologue makes of them.
        contiguous: The axis along which its elements lie side by side: ``"k"``, ``"i"`` (of A),
            ``"j"`` (of B), or ``""`` when there is none.
        run: Elements along it that start at a multiple of themselves: a power of two.
        plain: Whether it is read as it is, or zero where it is padded: no arithmetic.
    """

    dtype: str
    contiguous: str
    run: int
    plain: bool


@dataclasses.dataclass(frozen=True)
class Product:
    """A function whose product has the normal form.

    Attributes:
        sch: Its schedule; the operands go through copies of the normal form.
        anchor: The product; its loops are those of ``s, i, j, k``.
        extents: Of ``s, i, j, k``.
        a: The first factor.
        b: The second factor.
        sums: Type of the sums.
        out: Bytes of an element of the result.
        out_run: Elements of the result side by side along ``j``, a power of two.
    """

    sch: s_tir.Schedule
    anchor: SBlockRV
    extents: tuple[int, int, int, int]
    a: Operand
    b: Operand
    sums: str
    out: str
    out_run: int


def normalise(func: tirx.PrimFunc) -> Product | None:
    """``func`` in the normal form, or None when it has not exactly one product of that kind.

    Before -> after::

        for y, x, o: for r, c: Y[y, x, o] += X[y + r, x, c] * W[r, c, o]

        for i, k: A[0, i, k] = X[i // W + k // C, i % W, k % C]
        for j, k: B[0, j, k] = W[k // C, k % C, j]
        for i, j: for k: S[0, i, j] += A[0, i, k] * B[0, j, k]
        for y, x, o: Y[y, x, o] = S[0, y * W + x, o]
    """
    sch = s_tir.Schedule(IRModule({"main": func}))
    blocks = leaf_blocks(sch)
    reductions = [block for block in blocks if block_facts(sch, block).reduction]
    if len(reductions) != 1 or len(sch.get_output_blocks("root")) != 1:
        return None
    (anchor,) = reductions
    facts = _in_block_order(sch, anchor)
    used = _used(sch, anchor)
    kinds = _kinds(facts, used)
    if kinds is None or not is_product(sch, anchor):
        return None
    output = block_facts(sch, sch.get_output_blocks("root")[0])
    a, b = (_operand(sch, anchor, facts, kinds, n) for n in range(2))
    extents = tuple(
        math.prod(x.extent for x, kind in zip(facts.axes, kinds, strict=True) if kind == wanted)
        for wanted in "sijk"
    )
    copies = [sch.reindex(anchor, where) for where in (("read", 0), ("read", 1), ("write", 0))]
    shapes = [*sch.get(anchor).iter_vars]
    for n, order in enumerate(("sik", "sjk", "sij")):
        axes = [
            (kind, iv.dom.extent)
            for axis, kind, iv in zip(facts.axes, kinds, shapes, strict=True)
            if axis.var in used[n]
        ]
        side = "read" if n == 2 else "write"
        sch.transform_layout(copies[n], (side, 0), _fuse(axes, order))
    whole = [(kind, iv.dom.extent) for kind, iv in zip(kinds, shapes, strict=True)]
    sch.transform_block_layout(anchor, _fuse(whole, "sijk"))
    return Product(
        sch=sch,
        anchor=anchor,
        extents=extents,
        a=a,
        b=b,
        sums=str(facts.write.buffer.dtype),
        out=str(output.write.buffer.dtype),
        out_run=_run(output.write, [x.extent for x in output.axes], len(output.axes) - 1),
    )


def _in_block_order(sch: s_tir.Schedule, block: SBlockRV) -> BlockFacts:
    """The facts of ``block``, its reads in the order that primitives number them in."""
    facts = block_facts(sch, block)
    order = [region.source for region in sch.get(block).reads]
    reads = [r for buffer in order for r in facts.reads if r.buffer.same_as(buffer)]
    return dataclasses.replace(facts, reads=tuple(reads))


def _used(sch: s_tir.Schedule, block: SBlockRV) -> list[set[tirx.Var]]:
    """Variables that index the reads and the write of ``block``, those of a single step too."""
    found = sch.get(block)
    regions = [*found.reads, *found.writes]
    return [set().union(*(variables(r.min) for r in region.region)) for region in regions]


def _kinds(facts: BlockFacts, used: Sequence[set[tirx.Var]]) -> list[str] | None:
    """For each axis which of ``s, i, j, k`` it belongs to; None when one belongs to none."""
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
    # An axis of one step that some access leaves out belongs nowhere; what is missing has extent 1.
    return kinds if "k" in kinds else None


def is_product(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether ``block`` adds the product of its two reads, cast or not, to what it writes."""
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(sch.get(block).body, (tirx.BufferStore, stores.append), order="post")
    value = stores[0].value
    if not isinstance(value, tirx.Add):
        return False
    for total, product in ((value.a, value.b), (value.b, value.a)):
        if isinstance(total, ir.TensorLoad) and total.source.same_as(stores[0].buffer):
            product = _uncast(product)
            if isinstance(product, tirx.Mul):
                return all(isinstance(_uncast(x), ir.TensorLoad) for x in (product.a, product.b))
    return False


def _uncast(value: ir.Expr) -> ir.Expr:
    while isinstance(value, tirx.Cast):
        value = value.value
    return value


def _operand(
    sch: s_tir.Schedule, anchor: SBlockRV, facts: BlockFacts, kinds: Sequence[str], n: int
) -> Operand:
    access = facts.reads[n]
    extents = [axis.extent for axis in facts.axes]
    steps = [i for i, s in enumerate(access.strides) if s == 1 and extents[i] > 1]
    contiguous, run = "", 1
    if len(steps) == 1 and kinds[steps[0]] in ("i", "j", "k"):
        # Fused with others of its kind it must be the last of them: vectors run along it.
        last = max(i for i, kind in enumerate(kinds) if kind == kinds[steps[0]] and extents[i] > 1)
        if last == steps[0]:
            contiguous, run = kinds[last], _run(access, extents, last)
    producers = [
        block
        for block in sch.get_producers(anchor)
        if any(r.source.same_as(access.buffer) for r in sch.get(block).writes)
    ]
    dtype, plain = str(access.buffer.dtype), True
    for block in producers:
        made = block_facts(sch, block)
        plain = len(made.reads) == 1 and made.calls <= {"tirx.if_then_else", "prim.if_then_else"}
        plain = plain and str(made.reads[0].buffer.dtype) == dtype and made.size < 64
        plain = plain and not sch.get_producers(block)
        if made.reads:
            dtype = str(made.reads[0].buffer.dtype)
    return Operand(dtype, contiguous, run, plain)


def _run(access: Access, extents: Sequence[int], axis: int) -> int:
    """Elements along ``axis`` that one vector may take, a power of two; 1 when not contiguous."""
    if access.strides[axis] != 1:
        return 1
    others = [s for i, s in enumerate(access.strides) if i != axis and extents[i] > 1]
    if any(s is None for s in others):
        return 1
    step = math.gcd(extents[axis], *(s for s in others if s))
    return step & -step


def _fuse(axes: Sequence[tuple[str, ir.Expr]], order: str) -> tirx.IndexMap:
    """The map that makes one axis of all axes of a kind, row-major; ``order`` names the kinds."""
    inputs = [tirx.Var(f"v{n}", extent.ty) for n, (_, extent) in enumerate(axes)]
    fused: dict[str, ir.Expr] = {}
    for (kind, extent), v in zip(axes, inputs, strict=True):
        if kind:
            fused[kind] = fused[kind] * extent + v if kind in fused else v
    zero = tirx.IntImm(axes[0][1].ty, 0)
    return tirx.IndexMap(inputs, [fused.get(kind, zero) for kind in order], None)


def inline_producers(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Draw everything that makes what ``block`` copies into it."""
    while True:
        done = 0
        for producer in sch.get_producers(block):
            try:
                sch.compute_inline(producer)
                done += 1
            except ScheduleError:
                continue
        if not done:
            return


def inline_consumers(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Draw everything that finishes what ``block`` copies out into it.

    Raises:
        ScheduleError: When something remains.
    """
    while consumers := sch.get_consumers(block):
        done = 0
        for consumer in consumers:
            for producer in sch.get_producers(consumer):
                if not sch.get(producer).same_as(sch.get(block)):
                    inline_producers(sch, producer)
                    sch.compute_inline(producer)
            try:
                sch.compute_inline(consumer)
                done += 1
            except ScheduleError:
                sch.reverse_compute_inline(consumer)
                done += 1
        if not done:
            return
