"""Match int4 weights times a few rows of activations to the form of the tensor-core kernel."""

from __future__ import annotations

import dataclasses
import math

import tvm_ffi
from tvm import ir, sym, tirx

from tvmopt.kernels.analysis import Access, BlockFacts, block_facts, substitute
from tvmopt.kernels.cuda.common.inlining import one_reduction
from tvmopt.kernels.cuda.int4.source import PIECE, STEP
from tvmopt.kernels.cuda.int4.unpack import nibble_of
from tvmopt.kernels.workload import Refusal

# Weights of a 32-bit word.
_WORD = 8
# Most rows of the activation: the N dimension of the MMA.
_MOST_ROWS = 8
# Largest offset for which float16 holds 1024 + offset exactly.
_MOST_OFFSET = 64


@dataclasses.dataclass
class Int4Form:
    """``Y[m, n] = f(sum over k of X[m, k] * (bits(W, n, k) - offset) * S[n, k // group])``.

    A 32-bit word holds eight weights, the first in its lowest bits. The scale is optional.

    Attributes:
        x: The activation, float16.
        words: The packed weights.
        scales: The scales, float16; None without scales.
        result: The output.
        batch: Rows of the activation, ``m``.
        rows: Rows of the weight, ``n``.
        depth: K extent: weights of a row.
        group: Quantisation group: weights that share a scale.
        offset: Zero point of the weights.
        store: Store of an output element, in terms of ``total``, ``row`` and ``column``.
        total: Accumulator buffer, as ``store`` reads it.
        row: Variable of ``m`` in ``store``; None where m has extent 1.
        column: Variable of ``n`` in ``store``.
    """

    x: tirx.Buffer
    words: tirx.Buffer
    scales: tirx.Buffer | None
    result: tirx.Buffer
    batch: int
    rows: int
    depth: int
    group: int
    offset: int
    store: tirx.BufferStore
    total: tirx.Buffer
    row: tirx.Var | None
    column: tirx.Var


def prepare_int4(func: tirx.PrimFunc) -> Int4Form | None:
    """Return the int4 form of ``func``; None unless it matches, with divisible K and groups."""
    found = one_reduction(func)
    if isinstance(found, Refusal):
        return None
    sch, facts = found
    [last] = sch.get_output_blocks("root")
    end = block_facts(sch, last)
    body, final = sch.get(sch.get_sblock(facts.name)).body, sch.get(last).body
    if end.reduction or not isinstance(body, tirx.BufferStore):
        return None
    if not isinstance(final, tirx.BufferStore) or any((*facts.conditional, *end.conditional)):
        return None
    deep = [i for i in facts.reduction if facts.axes[i].extent > 1]
    wide = [i for i in facts.spatial if facts.axes[i].extent > 1]
    if len(deep) != 1 or not 1 <= len(wide) <= 2 or end.stores != 1:
        return None
    [k], n, m = deep, wide[-1], wide[0] if len(wide) == 2 else None
    depth, rows = facts.axes[k].extent, facts.axes[n].extent
    batch = 1 if m is None else facts.axes[m].extent
    factors = _factors(body, facts.axes[k].var)
    if factors is None or batch > _MOST_ROWS or depth % PIECE:
        return None
    offset, loads = factors
    reads = [r for r in facts.reads if not r.buffer.same_as(body.buffer)]
    words = [r for r in reads if "int" in str(r.buffer.dtype)]
    x = [r for r in reads if r.strides[k] == 1 and r.strides[n] == 0]
    scales = [r for r in reads if r not in words and r not in x]
    if len(words) != 1 or len(x) != 1 or len(scales) > 1 or loads != len(reads):
        return None
    if any(str(r.buffer.dtype) != "float16" for r in (*x, *scales)):
        return None
    group = _group(facts, scales[0], n, k) if scales else depth
    if group is None or not _walks(facts, words[0], n, k, depth, _WORD):
        return None
    if x[0].strides[k] != 1 or (m is not None and x[0].strides[m] != depth):
        return None
    if not _walks(facts, x[0], n, k, 0, 1, m):
        return None
    places = _places(body, final, facts, wide)
    if places is None:
        return None
    units = {
        a.var: tirx.IntImm(str(a.var.ty.dtype), 0)
        for a in end.axes
        if not any(a.var.same_as(v) for v in places)
    }
    if any(a.extent > 1 for a in end.axes if a.var in units):
        return None
    final = tirx.BufferStore(
        final.buffer, substitute(final.value, units), [substitute(i, units) for i in final.indices]
    )
    return Int4Form(
        x[0].buffer, words[0].buffer, scales[0].buffer if scales else None, final.buffer,
        batch, rows, depth, group, offset, final, body.buffer,
        places[0] if m is not None else None, places[-1],
    )  # fmt: skip


def _factors(body: tirx.BufferStore, k: tirx.Var) -> tuple[int, int] | None:
    """Return the zero point, and the number of loads that the summand multiplies.

    None unless the summand is a product of one 4-bit weight (the ``k``-th) and of loads, with any
    casts to floating point in between.
    """
    if not isinstance(body.value, tirx.Add):
        return None
    offsets: list[int] = []
    loads = 0
    a, b = body.value.a, body.value.b
    own = [e for e in (a, b) if isinstance(e, ir.TensorLoad) and e.source.same_as(body.buffer)]
    if len(own) != 1:
        return None
    left = [b if own[0].same_as(a) else a]
    while left:
        one = left.pop()
        nibble = nibble_of(one)
        if nibble is not None and nibble.place is not None and nibble.place.same_as(k):
            offsets.append(nibble.offset)
            loads += 1
        elif isinstance(one, tirx.Cast):
            if "float" not in str(one.ty.dtype):
                return None
            left.append(one.value)
        elif isinstance(one, tirx.Mul):
            left += [one.a, one.b]
        elif isinstance(one, ir.TensorLoad):
            loads += 1
        else:
            return None
    if len(offsets) != 1 or not 0 <= offsets[0] <= _MOST_OFFSET:
        return None
    return offsets[0], loads


def _group(facts: BlockFacts, scales: Access, n: int, k: int) -> int | None:
    """Return the quantisation group size; None where the kernel does not support it."""
    rows, depth = facts.axes[n].extent, facts.axes[k].extent
    size = math.prod(int(e) for e in scales.buffer.shape)
    if size % rows or depth % (size // rows):
        return None
    group = depth // (size // rows)
    if group % PIECE or (group > STEP and group % STEP and group != depth):
        return None
    return group if _walks(facts, scales, n, k, depth, group) else None


def _walks(
    facts: BlockFacts, access: Access, n: int, k: int, depth: int, each: int, m: int | None = None
) -> bool:
    """Whether ``access`` is element ``k // each`` of row ``n`` of ``depth // each`` elements."""
    kept = (n, k) if m is None else (n, k, m)
    fixed = {
        a.var: tirx.IntImm(str(a.var.ty.dtype), 0)
        for i, a in enumerate(facts.axes)
        if i not in kept
    }
    row, step = facts.axes[n].var, facts.axes[k].var
    wanted = row * (depth // each) + (tirx.floordiv(step, each) if each > 1 else step)
    if m is not None:
        wanted = wanted + facts.axes[m].var * facts.axes[k].extent
    analyzer = sym.Analyzer()
    for i in kept:
        analyzer.bind(facts.axes[i].var, ir.Range(0, facts.axes[i].extent))
    return bool(analyzer.can_prove_equal(substitute(access.offset, fixed), wanted))


def _places(
    body: tirx.BufferStore, final: tirx.BufferStore, facts: BlockFacts, wide: list[int]
) -> list[tirx.Var] | None:
    """Return the variables with which ``final`` indexes the axes ``wide``; None for others."""
    loads: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(final.value, (ir.TensorLoad, loads.append), order="post")
    sums = [load for load in loads if load.source.same_as(body.buffer)]
    if not sums:
        return None
    dims = [
        next((d for d, e in enumerate(body.indices) if e.same_as(facts.axes[i].var)), None)
        for i in wide
    ]
    if any(d is None for d in dims):
        return None
    found = [sums[0].indices[d] for d in dims]
    for load in sums[1:]:
        if not all(load.indices[d].same_as(v) for d, v in zip(dims, found, strict=True)):
            return None
    return found if all(isinstance(v, tirx.Var) for v in found) else None
