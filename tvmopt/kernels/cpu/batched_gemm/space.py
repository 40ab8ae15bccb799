"""Configuration space of the batched GEMM family, with predicted cycles."""

from __future__ import annotations

from collections.abc import Iterator

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.batched_gemm.config import NAME, BatchedGemmConfig
from tvmopt.kernels.cpu.common.contraction_cost import ContractionModel
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm
from tvmopt.kernels.cpu.common.loop_orders import loop_orders
from tvmopt.kernels.cpu.common.register_blocks import row_blocks, tile_widths
from tvmopt.kernels.ranked import Ranked


def batched_gemm_hints(form: ContractionForm, arch: CpuArch) -> list[Ranked[BatchedGemmConfig]]:
    """Return the configurations of ``form`` with predicted cycles, unordered."""
    model = ContractionModel(form, arch)
    return [model.rank(hint) for hint in _hints(form, arch)]


def _hints(form: ContractionForm, arch: CpuArch) -> Iterator[BatchedGemmConfig]:
    extents, facts = form.extents, form.facts
    rows = [facts.spatial.index(i) for i in form.rows]
    columns = [facts.spatial.index(i) for i in form.columns]
    lanes = arch.lanes(facts.dtype)
    for width in tile_widths(form, arch):
        if width % lanes:
            continue
        for row_block in row_blocks(form, rows, width // lanes, arch):
            tile = [row_block.get(p, 1) for p in range(len(extents) - 1)] + [width]
            for order, parallel, _ in loop_orders(extents, tile, rows, columns, False, arch):
                yield BatchedGemmConfig(NAME, arch, tuple(tile), order, parallel)
