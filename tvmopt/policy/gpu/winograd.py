"""Configurations of Winograd's transforms, the most promising first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tvm import tirx

from tvmopt.arch.cuda import CudaArch
from tvmopt.schedule.analysis import block_facts
from tvmopt.schedule.gpu.hint import GpuHint
from tvmopt.schedule.gpu.winograd import (
    GpuWinogradData,
    GpuWinogradOut,
    TransformForm,
    prepare_data,
    prepare_out,
)
from tvmopt.transform.winograd import MATRICES

from .elementwise import traffic
from .ranked import GpuRanked
from .stream import Stream
from .work import float_work

_VECTORS = (1, 2, 4)
_TILES = (1, 2, 3, 4)
_THREADS = (64, 128, 256)
# Registers of a thread besides what it has loaded, as ptxas reports them, and the most that leave
# nothing in local memory.
_OTHER_REGISTERS, _MOST_REGISTERS = 44, 240
# Instructions of a thread besides those of its elements, and of a load or store with its address
# and its condition.
_PROLOGUE, _ACCESS = 60.0, 4.0


def winograd_hints(func: tirx.PrimFunc, arch: CudaArch) -> list[GpuRanked]:
    """Configurations of the transform that ``func`` is, best first; none when it is none."""
    for template, prepare in ((GpuWinogradData, prepare_data), (GpuWinogradOut, prepare_out)):
        form = prepare(func)
        if form is not None:
            found = (_ranked(template.name, form, choice, arch) for choice in _choices())
            return sorted((r for r in found if r is not None), key=lambda r: r.cycles)
    return []


def _choices() -> itertools.product[tuple[int, int, int]]:
    return itertools.product(_VECTORS, _TILES, _THREADS)


def _ranked(
    name: str, form: TransformForm, choice: tuple[int, int, int], arch: CudaArch
) -> GpuRanked | None:
    """One configuration with its cost; None where it does not fit."""
    vector, tiles, threads = choice
    hint = GpuHint(
        name, arch, thread=(threads,), vector=vector, options=(("tiles", tiles),)
    )
    side, m = form.m + 2, form.m
    points = tiles * side * side
    loads = points if form.padded is None else side * (tiles * m + 2)
    registers = loads * vector + _OTHER_REGISTERS
    if not form.takes(hint) or registers > _MOST_REGISTERS:
        return None
    size = 4
    count = math.prod(form.grid) // tiles * (form.channels // vector)
    sch = form.sch
    if form.padded is None:
        last = block_facts(sch, form.last)
        products = math.prod(form.grid) * side * side * form.channels * size
        moved = products + traffic(last) - _local_bytes(form)
        inputs = len({str(read.buffer.name) for read in last.reads}) - 1
        accesses = loads + tiles * m * m * (1 + inputs)
        ending = float_work(sch, last.name) * tiles * m * m
        work = tiles * transform_work(MATRICES[m].at) + ending
        again = 0.0
    else:
        moved = traffic(block_facts(sch, form.padded)) - _padded_bytes(form)
        read = moved
        moved += math.prod(form.grid) * side * side * form.channels * size
        again = max(0.0, count * loads * vector * size - read)
        accesses = loads + points
        work = tiles * transform_work(MATRICES[m].bt)
    stream = Stream(
        blocks=math.ceil(count / threads),
        threads=threads,
        moved=moved,
        again=again,
        flight=float(loads * vector * size),
        instructions=_PROLOGUE + accesses * _ACCESS + vector * work,
        registers=registers,
    )
    return GpuRanked(hint, stream.cycles(arch), stream.parts(arch))


def transform_work(matrix: Sequence[Sequence[float]]) -> float:
    """Additions of ``matrix @ tile @ matrix.T`` for a square tile; their factors come with them."""
    one = sum(sum(c != 0 for c in row) - 1 for row in matrix)
    return float(one * (len(matrix[0]) + len(matrix)))


def _local_bytes(form: TransformForm) -> float:
    """Bytes of the tiles' outputs, which stay in registers."""
    return float(math.prod(form.grid) * form.m**2 * form.channels * 4)


def _padded_bytes(form: TransformForm) -> float:
    """Bytes of the padded data, which stays in registers."""
    images, tiles_y, tiles_x = form.grid
    return float(
        images * (tiles_y * form.m + 2) * (tiles_x * form.m + 2) * form.channels * 4
    )
