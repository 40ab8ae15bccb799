"""Aligned contiguous runs of an access: the vector widths with which it can be loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import ir, sym, tirx

from tvmopt.kernels.analysis import Access, BlockFacts, substitute
from tvmopt.kernels.cuda.common.vectors import most_lanes


def aligned_run(access: Access, facts: BlockFacts, members: Sequence[int], most: int = 16) -> int:
    """Return the longest aligned contiguous run that aligned groups of fused axes read.

    Args:
        access: The access.
        facts: The block that reads.
        members: Its axes that are fused, outermost first.
        most: The longest run asked for, a power of two.

    Returns:
        Elements, a power of two; 1 when the access is not contiguous.
    """
    most = min(most, most_lanes(access.buffer.dtype))
    if access.strides[members[-1]] is None:
        return _divided_run(access, facts, members[-1], most)
    length = 1
    inner: set[int] = set()
    for n in reversed(members):
        # One vector must not span elements with different conditions.
        if access.strides[n] != length or (inner and facts.conditional[n]):
            break
        length *= facts.axes[n].extent
        inner.add(n)
    if not inner:
        return 1
    run = math.gcd(length, most)
    while run > 1 and not _starts_aligned(access, facts, inner, run):
        run //= 2
    return run


def _divided_run(access: Access, facts: BlockFacts, index: int, most: int) -> int:
    """Return :func:`aligned_run` along an axis that the access divides, since it is a fused one."""
    axis, run = facts.axes[index], most
    dtype = str(axis.var.ty.dtype)
    part, place = tirx.Var("part", dtype), tirx.Var("place", dtype)
    while run > 1:
        analyzer = sym.Analyzer()
        for other in facts.axes:
            analyzer.bind(other.var, ir.Range(0, other.extent))
        analyzer.bind(part, ir.Range(0, max(1, axis.extent // run)))
        analyzer.bind(place, ir.Range(0, run))
        moved = substitute(access.offset, {axis.var: part * run + place})
        start = substitute(access.offset, {axis.var: part * run})
        aligned = analyzer.simplify(start % run)
        whole = axis.extent % run == 0 and isinstance(aligned, tirx.IntImm) and int(aligned) == 0
        if whole and analyzer.can_prove_equal(moved, start + place):
            return run
        run //= 2
    return 1


def _starts_aligned(access: Access, facts: BlockFacts, inner: set[int], run: int) -> bool:
    """Whether groups of ``run`` elements along the axes ``inner`` start at multiples of ``run``."""
    analyzer = sym.Analyzer()
    start = access.offset
    for n, axis in enumerate(facts.axes):
        analyzer.bind(axis.var, ir.Range(0, axis.extent))
        if n in inner:
            start = substitute(start, {axis.var: tirx.IntImm(axis.var.ty.dtype, 0)})
    remainder = analyzer.simplify(start % run)
    return isinstance(remainder, tirx.IntImm) and int(remainder) == 0


def contiguous_run(access: Access, extents: Sequence[int], axis: int) -> int:
    """Return the vector width along ``axis``, a power of two; 1 when not contiguous."""
    if access.strides[axis] != 1:
        return 1
    others = [s for i, s in enumerate(access.strides) if i != axis and extents[i] > 1]
    if any(s is None for s in others):
        return 1
    step = math.gcd(extents[axis], *(s for s in others if s))
    return step & -step
