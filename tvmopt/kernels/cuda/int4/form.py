"""Match int4 weights times a few rows of activations to the form of the tensor-core kernel.

The function may normalise the activation first (RMSNorm), and its epilogue may combine two rows of
the weight whose results lie half of the rows apart: gate and up of a feed-forward network::

    total = matmul(rms_norm(x), concat(w_gate, w_up))
    y[m, n] = silu(total[m, n]) * total[m, n + N / 2]
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tvm_ffi
from tvm import IRModule, ir, s_tir, sym, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import Access, BlockFacts, all_facts, block_facts, substitute
from tvmopt.kernels.cuda.common.inlining import inline_all, output_block
from tvmopt.kernels.cuda.common.loops import with_epilogue
from tvmopt.kernels.cuda.int4.norm import NormForm, norm_blocks, norm_form, summand
from tvmopt.kernels.cuda.int4.source import PIECE, STAGE, STEP
from tvmopt.kernels.cuda.int4.unpack import nibble_of

# Weights of a 32-bit word.
_WORD = 8
# Most rows of the activation: the N dimension of the MMA.
_MOST_ROWS = 8
# Largest offset for which float16 holds 1024 + offset exactly.
_MOST_OFFSET = 64
#: Most bytes of the activation in shared memory; a larger one stays in global memory.
MOST_X_BYTES = 64 * 1024


@dataclasses.dataclass
class Int4Form:
    """``Y[m, n] = f(sum over k of X[m, k] * (bits(W, n, k) - offset) * S[n, k // group])``.

    A 32-bit word holds eight weights, the first in its lowest bits. The scale is optional. With two
    parts, ``f`` takes the accumulators of rows ``n`` and ``n + rows / 2``.

    Attributes:
        x: The activation, float16; before RMSNorm also float32.
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
        parts: Rows of the weight that an output element needs, 1 or 2.
        norm: RMSNorm of the activation; None without.
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
    parts: int
    norm: NormForm | None

    @property
    def columns(self) -> int:
        """Columns of the output."""
        return self.rows // self.parts

    @property
    def x_bytes(self) -> int:
        """Bytes of the activation in shared memory; its rows are padded by 64 bytes."""
        return 16 * self.batch * (-(-self.depth // STAGE) * 32 + 4)


@dataclasses.dataclass(frozen=True)
class _Axes:
    """Axes of the matmul, as indices of the block's axes; ``m`` is None where it has extent 1."""

    facts: BlockFacts
    m: int | None
    n: int
    k: int

    def extent(self, axis: int | None) -> int:
        """Return the extent of ``axis``."""
        return 1 if axis is None else self.facts.axes[axis].extent

    def index(self, axis: int | None) -> ir.Expr:
        """Return the variable of ``axis``; 0 without one."""
        return tirx.IntImm("int64", 0) if axis is None else self.facts.axes[axis].var

    def is_at(self, access: Access, offset: ir.Expr) -> bool:
        """Return whether ``access`` is at ``offset``, in elements, in every iteration."""
        analyzer = sym.Analyzer()
        for axis in self.facts.axes:
            analyzer.bind(axis.var, ir.Range(0, axis.extent))
        return bool(analyzer.can_prove_equal(access.offset, offset))


@dataclasses.dataclass(frozen=True)
class _Operands:
    """Operands of the matmul, and what the weight's decoding needs, as in :class:`Int4Form`."""

    x: Access
    words: Access
    scales: Access | None
    group: int
    offset: int


@dataclasses.dataclass(frozen=True)
class _Epilogue:
    """Store of one output element, as in :class:`Int4Form`."""

    store: tirx.BufferStore
    row: tirx.Var | None
    column: tirx.Var
    parts: int


@dataclasses.dataclass(frozen=True)
class _Matmul:
    """The matmul of a schedule in which everything else but RMSNorm is inlined."""

    sch: s_tir.Schedule
    block: SBlockRV
    norm: NormForm | None


def prepare_int4(func: tirx.PrimFunc) -> Int4Form | None:
    """Return the int4 form of ``func``; None unless it matches, with divisible K and groups."""
    if not any(str(param.dtype) in ("uint32", "int32") for param in func.params):
        return None
    found = _matmul(func)
    if found is None:
        return None
    sch, block, norm = found.sch, found.block, found.norm
    last = with_epilogue(sch, block)
    update = sch.get(block).body
    axes = _axes(block_facts(sch, block))
    if axes is None or not isinstance(update, tirx.BufferStore):
        return None
    operands = _operands(axes, update)
    epilogue = _epilogue(sch, last, axes, update)
    if operands is None or epilogue is None:
        return None
    if norm is not None and not operands.x.buffer.same_as(norm.result):
        return None
    form = Int4Form(
        x=operands.x.buffer if norm is None else norm.x,
        words=operands.words.buffer,
        scales=None if operands.scales is None else operands.scales.buffer,
        result=epilogue.store.buffer,
        batch=axes.extent(axes.m),
        rows=axes.extent(axes.n),
        depth=axes.extent(axes.k),
        group=operands.group,
        offset=operands.offset,
        store=epilogue.store,
        total=update.buffer,
        row=epilogue.row,
        column=epilogue.column,
        parts=epilogue.parts,
        norm=norm,
    )
    # RMSNorm is computed into shared memory.
    return form if norm is None or form.x_bytes <= MOST_X_BYTES else None


def _matmul(func: tirx.PrimFunc) -> _Matmul | None:
    """Return the only reduction of ``func``, besides one of RMSNorm, with at most one epilogue."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    blocks = norm_blocks(sch)
    inline_all(sch, () if blocks is None else (blocks.rows,))
    norm = None if blocks is None else norm_form(sch, blocks)
    names = () if blocks is None else (blocks.squares, blocks.rows)
    rest = [facts for facts in all_facts(sch) if facts.name not in names]
    if (blocks is not None and norm is None) or not 1 <= len(rest) <= 2:
        return None
    matmul, *epilogue = rest
    if not matmul.reduction or matmul.stores != 1 or output_block(sch) is None:
        return None
    for facts in epilogue:
        used = [read.buffer for read in facts.reads]
        if facts.reduction or (norm and any(buffer.same_as(norm.result) for buffer in used)):
            return None
    return _Matmul(sch, sch.get_sblock(matmul.name), norm)


def _axes(facts: BlockFacts) -> _Axes | None:
    """Return the axes of a matmul of few rows; None for other reductions."""
    reduction = [i for i in facts.reduction if facts.axes[i].extent > 1]
    spatial = [i for i in facts.spatial if facts.axes[i].extent > 1]
    if len(reduction) != 1 or not 1 <= len(spatial) <= 2 or any(facts.conditional):
        return None
    axes = _Axes(facts, spatial[0] if len(spatial) == 2 else None, spatial[-1], reduction[0])
    fits = axes.extent(axes.m) <= _MOST_ROWS and axes.extent(axes.k) % PIECE == 0
    return axes if fits else None


def _operands(axes: _Axes, update: tirx.BufferStore) -> _Operands | None:
    """Return the operands of the matmul; None unless the kernel can address them.

    The activation is ``X[m, k]``, a word is ``W[n, k // 8]``, a scale is ``S[n, k // group]``.
    """
    factors = _factors(update, axes.index(axes.k))
    reads = [r for r in axes.facts.reads if not r.buffer.same_as(update.buffer)]
    words = [r for r in reads if "int" in str(r.buffer.dtype)]
    floats = [r for r in reads if r not in words]
    x = [r for r in floats if r.strides[axes.k] == 1 and r.strides[axes.n] == 0]
    scales = [r for r in floats if r not in x]
    if factors is None or len(words) != 1 or len(x) != 1 or len(scales) > 1:
        return None
    offset, loads = factors
    if loads != len(reads) or any(str(r.buffer.dtype) != "float16" for r in floats):
        return None
    depth, n, k = axes.extent(axes.k), axes.index(axes.n), axes.index(axes.k)
    group = _group(axes, scales[0]) if scales else depth
    if group is None or not axes.is_at(x[0], axes.index(axes.m) * depth + k):
        return None
    if not axes.is_at(words[0], n * (depth // _WORD) + tirx.floordiv(k, _WORD)):
        return None
    return _Operands(x[0], words[0], scales[0] if scales else None, group, offset)


def _factors(update: tirx.BufferStore, k: ir.Expr) -> tuple[int, int] | None:
    """Return the zero point, and the number of loads that the summand multiplies.

    None unless the summand is a product of one 4-bit weight (the ``k``-th) and of loads, with any
    casts to floating point in between.
    """
    term = summand(update)
    left = [] if term is None else [term]
    offsets: list[int] = []
    loads = 0
    while left:
        one = left.pop()
        nibble = nibble_of(one)
        if nibble is not None and nibble.place is not None and nibble.place.same_as(k):
            offsets.append(nibble.offset)
            loads += 1
        elif isinstance(one, tirx.Cast) and "float" in str(one.ty.dtype):
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


def _group(axes: _Axes, scales: Access) -> int | None:
    """Return the quantisation group size; None where the kernel does not support it."""
    rows, depth = axes.extent(axes.n), axes.extent(axes.k)
    size = math.prod(int(e) for e in scales.buffer.shape)
    if size % rows or depth % (size // rows):
        return None
    group = depth // (size // rows)
    if group % PIECE or (group > STEP and group % STEP and group != depth):
        return None
    expected = axes.index(axes.n) * (depth // group) + tirx.floordiv(axes.index(axes.k), group)
    return group if axes.is_at(scales, expected) else None


def _epilogue(
    sch: s_tir.Schedule, last: SBlockRV, axes: _Axes, update: tirx.BufferStore
) -> _Epilogue | None:
    """Return the store of block ``last``, whose only free variables are ``m`` and ``n``."""
    facts, store = block_facts(sch, last), sch.get(last).body
    if facts.stores != 1 or any(facts.conditional) or not isinstance(store, tirx.BufferStore):
        return None
    extents = [a.extent for a in facts.axes if not a.reduce]
    parts, left = divmod(axes.extent(axes.m) * axes.extent(axes.n), math.prod(extents))
    if parts not in (1, 2) or left:
        return None
    far = axes.extent(axes.n) // parts
    column = _index_of_loads(store, update, axes.index(axes.n), [p * far for p in range(parts)])
    row = None if axes.m is None else _index_of_loads(store, update, axes.index(axes.m), [0])
    if column is None or (axes.m is not None and row is None):
        return None
    others = [a for a in facts.axes if not a.var.same_as(column) and not a.var.same_as(row)]
    if any(a.extent > 1 for a in others):
        return None
    zeros = {a.var: tirx.IntImm(str(a.var.ty.dtype), 0) for a in others}
    indices = [substitute(index, zeros) for index in store.indices]
    store = tirx.BufferStore(store.buffer, substitute(store.value, zeros), indices)
    return _Epilogue(store, row, column, parts)


def _index_of_loads(
    store: tirx.BufferStore, update: tirx.BufferStore, axis: ir.Expr, distances: Sequence[int]
) -> tirx.Var | None:
    """Return the variable with which ``store`` loads the accumulators along ``axis``.

    None unless all loads use the same variable, plus one of ``distances``.
    """
    loads: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(store.value, (ir.TensorLoad, loads.append), order="post")
    dim = next((d for d, index in enumerate(update.indices) if index.same_as(axis)), None)
    if dim is None:
        return None
    places = [load.indices[dim] for load in loads if load.source.same_as(update.buffer)]
    found = [_apart(place) for place in places]
    same = found and all(var is not None and var.same_as(found[0][0]) for var, _ in found)
    return found[0][0] if same and {far for _, far in found} <= set(distances) else None


def _apart(index: ir.Expr) -> tuple[tirx.Var | None, int]:
    """Return ``v`` and ``c`` of an index ``v + c``; None and 0 for others."""
    far = 0
    if isinstance(index, tirx.Add) and isinstance(index.b, tirx.IntImm):
        index, far = index.a, int(index.b)
    return (index, far) if isinstance(index, tirx.Var) else (None, 0)
