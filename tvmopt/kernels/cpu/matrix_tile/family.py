"""GEMM and convolution on CPUs with AMX tiles."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm, match_contraction
from tvmopt.kernels.cpu.common.cpu_family import CpuFamily
from tvmopt.kernels.cpu.common.matched import matched
from tvmopt.kernels.cpu.matrix_tile.config import NAME, MatrixTileConfig
from tvmopt.kernels.cpu.matrix_tile.flat_rows import match_flat_rows
from tvmopt.kernels.cpu.matrix_tile.schedule import emit
from tvmopt.kernels.cpu.matrix_tile.space import matrix_tile_hints
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class MatrixTile(CpuFamily[ContractionForm, MatrixTileConfig]):
    """Accumulator tiles stay in AMX tile registers over all of K; the weight is packed."""

    name = NAME
    schedule = staticmethod(emit)
    config_type = MatrixTileConfig
    kind = "gemm"

    def match(self, workload: Workload, arch: CpuArch) -> ContractionForm | Refusal:
        """Return the only contraction, if the CPU has a tile instruction for its dtypes."""
        form = matched(workload, match_contraction)
        if isinstance(form, Refusal):
            return form
        if form.tile(arch) is None:
            return Refusal("the CPU has no tile instruction for its operands")
        return matched(workload, match_flat_rows)

    def rank(self, form: ContractionForm, arch: CpuArch) -> Sequence[Ranked[MatrixTileConfig]]:
        """Return the configuration space: tile blocks and loop orders, with predicted cycles."""
        return matrix_tile_hints(form, arch)
