"""Match RMSNorm of the activation, which the int4 GEMV computes while it stages the activation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from tvmopt.kernels.analysis import BlockFacts, block_facts, leaf_blocks

_WIDE = "float32"


@dataclasses.dataclass(frozen=True)
class NormForm:
    """``X[m, k] = x[m, k] / sqrt(mean(x[m, :] ** 2) + epsilon) * weight[k]``, rounded to float16.

    Attributes:
        x: The rows before RMSNorm, float16 or float32.
        weight: The factors, float32; None without.
        epsilon: Added to the mean of squares.
        result: ``X``.
    """

    x: tirx.Buffer
    weight: tirx.Buffer | None
    epsilon: float
    result: tirx.Buffer


@dataclasses.dataclass(frozen=True)
class NormBlocks:
    """Names of the two blocks of RMSNorm: sums of squares, and normalised rows."""

    squares: str
    rows: str


def norm_blocks(sch: s_tir.Schedule) -> NormBlocks | None:
    """Return the first of two reductions, and the only block that reads it; None for others."""
    reductions = [b for b in leaf_blocks(sch) if block_facts(sch, b).reduction]
    readers = sch.get_consumers(reductions[0]) if len(reductions) == 2 else []
    if len(readers) != 1 or block_facts(sch, readers[0]).reduction:
        return None
    return NormBlocks(sch.get(reductions[0]).name_hint, sch.get(readers[0]).name_hint)


def norm_form(sch: s_tir.Schedule, blocks: NormBlocks) -> NormForm | None:
    """Return the RMSNorm that ``blocks`` compute; None where they compute something else.

    Args:
        sch: A schedule in which everything but ``blocks`` is inlined.
        blocks: The blocks.
    """
    squares, rows = (sch.get_sblock(name) for name in (blocks.squares, blocks.rows))
    summed, normed = block_facts(sch, squares), block_facts(sch, rows)
    update, store = sch.get(squares).body, sch.get(rows).body
    if not isinstance(update, tirx.BufferStore) or not isinstance(store, tirx.BufferStore):
        return None
    term = summand(update)
    if not isinstance(term, tirx.Mul) or not tvm_ffi.structural_equal(term.a, term.b):
        return None
    x, depth = _widened(term.a), summed.reduced
    if x is None or str(update.buffer.dtype) != _WIDE or str(store.buffer.dtype) != "float16":
        return None
    if not isinstance(store.value, tirx.Cast):
        return None
    for quotient, factor in _scaled(store.value.value):
        weight = None if factor is None else factor.source
        epsilon = _epsilon(quotient.b, update.buffer, depth)
        divided = _widened(quotient.a)
        if epsilon is None or divided is None or not divided.source.same_as(x.source):
            continue
        if _in_place(summed, normed, x.source, weight, depth):
            return NormForm(x.source, weight, epsilon, store.buffer)
    return None


def summand(update: tirx.BufferStore) -> ir.Expr | None:
    """Return what ``update`` adds to its own buffer; None where it does something else."""
    if not isinstance(update.value, tirx.Add):
        return None
    a, b = update.value.a, update.value.b
    for own, other in ((a, b), (b, a)):
        if isinstance(own, ir.TensorLoad) and own.source.same_as(update.buffer):
            return other
    return None


def _widened(value: ir.Expr) -> ir.TensorLoad | None:
    """Return a load of float32, or of float16 that is cast to it."""
    if isinstance(value, tirx.Cast) and str(value.ty.dtype) == _WIDE:
        value = value.value
        return value if _is_load(value, "float16") else None
    return value if _is_load(value, _WIDE) else None


def _is_load(value: ir.Expr, dtype: str) -> bool:
    return isinstance(value, ir.TensorLoad) and str(value.ty.dtype) == dtype


def _scaled(value: ir.Expr) -> Iterator[tuple[tirx.Div, ir.TensorLoad | None]]:
    """Yield ``q`` and ``w`` of ``q * w``, and ``q`` of a quotient ``q``."""
    if isinstance(value, tirx.Div):
        yield value, None
    if isinstance(value, tirx.Mul):
        for quotient, factor in ((value.a, value.b), (value.b, value.a)):
            if isinstance(quotient, tirx.Div) and _is_load(factor, _WIDE):
                yield quotient, factor


def _epsilon(root: ir.Expr, squares: tirx.Buffer, depth: int) -> float | None:
    """Return ``e`` of ``sqrt(squares[m] / depth + e)``; None for other expressions."""
    if not isinstance(root, ir.Call) or str(getattr(root.op, "name", "")) != "tirx.sqrt":
        return None
    under, epsilon = root.args[0], 0.0
    if isinstance(under, tirx.Add) and isinstance(under.b, tirx.FloatImm):
        under, epsilon = under.a, float(under.b.value)
    if not isinstance(under, tirx.Div) or not isinstance(under.b, tirx.FloatImm):
        return None
    is_mean = _is_load(under.a, _WIDE) and under.a.source.same_as(squares)
    return epsilon if is_mean and float(under.b.value) == depth else None


def _in_place(
    summed: BlockFacts,
    normed: BlockFacts,
    x: tirx.Buffer,
    weight: tirx.Buffer | None,
    depth: int,
) -> bool:
    """Return whether both blocks index rows of ``depth`` elements, and the weight by column."""
    if len(summed.reduction) != 1:
        return False
    column = summed.axes[summed.reduction[0]].var
    at, row = normed.write.offset, tirx.IntImm("int64", depth)
    expected = [(summed, x, summed.write.offset * row + column), (normed, x, at)]
    expected.append((normed, summed.write.buffer, tirx.floordiv(at, row)))
    if weight is not None:
        expected.append((normed, weight, tirx.floormod(at, row)))
    known = [buffer for _, buffer, _ in expected]
    reads = [(facts, read) for facts in (summed, normed) for read in facts.reads]
    if any(not any(read.buffer.same_as(buffer) for buffer in known) for _, read in reads):
        return False
    return all(
        _proves(facts, read.offset, offset)
        for facts, buffer, offset in expected
        for read in facts.reads
        if read.buffer.same_as(buffer)
    )


def _proves(facts: BlockFacts, offset: ir.Expr, expected: ir.Expr) -> bool:
    """Return whether both offsets are the same in every iteration of the block."""
    analyzer = sym.Analyzer()
    for axis in facts.axes:
        analyzer.bind(axis.var, ir.Range(0, axis.extent))
    return bool(analyzer.can_prove_equal(offset, expected))
