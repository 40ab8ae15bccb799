"""Configurations of the convolution with few output channels, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.stream_cost import StreamCost
from tvmopt.kernels.cuda.common.traffic import traffic
from tvmopt.kernels.cuda.few_filters.config import FewFiltersConfig
from tvmopt.kernels.cuda.few_filters.form import VECTOR_BYTES, FewFiltersForm
from tvmopt.kernels.ranked import Ranked

FEW_FILTERS_NAME = "gpu_few_filters"
_LINE = 128  # bytes of a line of L1


def few_filters_hints(form: FewFiltersForm, arch: CudaArch) -> list[Ranked[FewFiltersConfig]]:
    """Return the ``gpu_few_filters`` configurations, fastest predicted first."""
    ranked = []
    for threads, pixels in itertools.product((128, 256), (1, 2, 4)):
        if form.extent(2) % pixels == 0:
            stream = _cost(form, threads, pixels, arch)
            config = FewFiltersConfig(FEW_FILTERS_NAME, arch, threads, pixels)
            ranked.append(Ranked(config, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda one: one.cycles)


def _cost(form: FewFiltersForm, threads: int, pixels: int, arch: CudaArch) -> StreamCost:
    """Return the cost model's view of the kernel."""
    facts, vector, filters = form.facts, form.vector, form.filters
    size = VECTOR_BYTES // vector
    taps = form.extent(form.window[-1]) if form.window else 1
    rows = math.prod(form.extent(axis) for axis in form.window[:-1])
    steps = rows * form.extent(form.channel) // vector
    columns = (pixels - 1) * form.column_step + taps
    weights = taps * vector * filters
    converted = (columns * vector + weights) * (size < 4)
    step = columns * 6 + weights / vector + converted + taps * vector * pixels * filters
    outputs = math.prod(form.extent(axis) for axis in range(3))
    # Neighbouring threads load pixels that lie this far apart.
    apart = pixels * form.column_step * form.extent(form.channel) * size
    lines = arch.warp * min(1.0, apart / _LINE)
    return StreamCost(
        blocks=math.ceil(outputs / pixels / threads),
        threads=threads,
        compulsory_bytes=traffic(facts),
        reread_bytes=float(outputs / pixels * steps * columns * VECTOR_BYTES),
        in_flight_bytes=float(columns * VECTOR_BYTES),
        instructions=60.0 + steps * step + 4.0 * pixels * filters,
        load_rounds=float(steps),
        warp_lines=steps * columns * lines,
        registers=32 + columns * 4 + weights * size // 4 + pixels * filters,
        smem_bytes=rows * taps * form.extent(form.channel) * filters * size,
    )
