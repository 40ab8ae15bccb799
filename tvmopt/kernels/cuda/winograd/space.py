"""Enumerate configurations of the Winograd transforms, ranked by predicted cycles."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from tvm import tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import block_facts
from tvmopt.kernels.cuda.common.stream_cost import StreamCost
from tvmopt.kernels.cuda.common.traffic import size_of
from tvmopt.kernels.cuda.common.work import float_work
from tvmopt.kernels.cuda.winograd.config import WinogradTransformConfig
from tvmopt.kernels.cuda.winograd.schedule import (
    DATA_NAME,
    OUT_NAME,
    TransformForm,
    prepare_data,
    prepare_out,
)
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.winograd_matrices import MATRICES
from tvmopt.kernels.workload import Refusal

_VECTORS, _TILES, _THREADS = (4, 2, 1), (1, 2, 3, 4), (128, 64, 256)
# Registers of a thread: for each loaded element, and besides (about what ptxas reports at ragged
# edges); most registers for which ptxas does not spill.
_LOADED, _OTHER_REGISTERS, _MOST_REGISTERS = 1.15, 14, 240
_FLOAT = 4


@dataclasses.dataclass(frozen=True)
class Transform:
    """A Winograd transform, common to all its configurations.

    Attributes:
        form: The analysed function.
        name: Name of its template.
        compulsory_bytes: Compulsory memory traffic in bytes.
        epilogue_instructions: Epilogue instructions of an element.
        epilogue_inputs: Inputs of the epilogue.
    """

    form: TransformForm
    name: str
    compulsory_bytes: float
    epilogue_instructions: float = 0.0
    epilogue_inputs: int = 0

    def ranked(self, config: WinogradTransformConfig) -> Ranked[WinogradTransformConfig] | None:
        """Return ``config`` with its cost; None where it does not fit."""
        form, m, side = self.form, self.form.m, self.form.m + 2
        vector, tiles = config.vector_elements, config.tiles_per_thread
        arch, costs = config.arch, config.arch.costs
        is_input = form.padded is not None
        loads = side * (tiles * m + 2) if is_input else tiles * side * side
        registers = int(_LOADED * loads * vector) + _OTHER_REGISTERS
        if form.why_not(config) is not None or registers > _MOST_REGISTERS:
            return None
        count = math.prod(form.grid) // tiles * (form.channels // vector)
        if is_input:
            accesses = loads + tiles * side * side
            work = tiles * transform_work(MATRICES[m].bt)
            # Neighbouring tiles overlap; each thread loads the overlap itself.
            again = max(0.0, count * loads * vector * _FLOAT - _data_bytes(form))
        else:
            accesses = loads + tiles * m * m * (1 + self.epilogue_inputs)
            work = tiles * (transform_work(MATRICES[m].at) + m * m * self.epilogue_instructions)
            again = 0.0
        stream = StreamCost(
            blocks=math.ceil(count / config.threads),
            threads=config.threads,
            compulsory_bytes=self.compulsory_bytes,
            reread_bytes=again,
            in_flight_bytes=float(loads * vector * _FLOAT),
            instructions=costs.transform_instructions
            + accesses * costs.transform_access_instructions
            + vector * work,
            registers=registers,
        )
        return Ranked(config, stream.cycles(arch), stream.parts(arch))

    def configs(self, arch: CudaArch) -> list[Ranked[WinogradTransformConfig]]:
        """Return all configurations that fit, fastest predicted first."""
        found = (
            self.ranked(WinogradTransformConfig(self.name, arch, threads, vector, tiles))
            for vector, tiles, threads in itertools.product(_VECTORS, _TILES, _THREADS)
        )
        return sorted((r for r in found if r is not None), key=lambda r: r.cycles)


def transform_work(matrix: Sequence[Sequence[float]]) -> float:
    """Return the additions of ``matrix @ tile @ matrix.T``; multiplications fuse with them."""
    of_column = sum(sum(c != 0 for c in row) - 1 for row in matrix)
    return float(of_column * (len(matrix[0]) + len(matrix)))


def transform_of(func: tirx.PrimFunc) -> Transform | Refusal:
    """Return the Winograd transform that ``func`` computes."""
    if not isinstance(form := prepare_data(func), Refusal):
        written = math.prod(form.grid) * (form.m + 2) ** 2 * form.channels * _FLOAT
        return Transform(form, DATA_NAME, _data_bytes(form) + written)
    if isinstance(form := prepare_out(func), Refusal):
        return form
    sch = form.sch
    last = block_facts(sch, form.last)
    between = sch.get(form.whole).writes[0].source
    arrays = [r.buffer for r in last.reads if not r.buffer.same_as(between)]
    inputs = [b for n, b in enumerate(arrays) if not any(b.same_as(a) for a in arrays[:n])]
    gemm_output = math.prod(form.grid) * (form.m + 2) ** 2 * form.channels * _FLOAT
    moved = gemm_output + sum(size_of(buffer) for buffer in (last.write.buffer, *inputs))
    return Transform(form, OUT_NAME, float(moved), float_work(sch, last.name), len(inputs))


def _data_bytes(form: TransformForm) -> float:
    """Return the bytes of the input before its transform."""
    assert form.padded is not None
    [data] = form.sch.get(form.padded).reads
    return float(size_of(data.source))
