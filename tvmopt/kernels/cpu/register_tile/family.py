"""GEMM and convolution on CPUs with register tiles and packed weights (GotoBLAS)."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm, match_contraction
from tvmopt.kernels.cpu.common.cpu_family import CpuFamily
from tvmopt.kernels.cpu.common.matched import matched
from tvmopt.kernels.cpu.common.tile_signature import tile_signature
from tvmopt.kernels.cpu.register_tile.config import NAME, RegisterTileConfig
from tvmopt.kernels.cpu.register_tile.schedule import emit
from tvmopt.kernels.cpu.register_tile.space import register_tile_hints
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class RegisterTile(CpuFamily[ContractionForm, RegisterTileConfig]):
    """Keeps a register tile of accumulators over the reduction; the weight is packed."""

    name = NAME
    schedule = staticmethod(emit)
    config_type = RegisterTileConfig
    kind = "gemm"

    def match(self, workload: Workload, arch: CpuArch) -> ContractionForm | Refusal:
        """Return the workload's only contraction with its operands and epilogue."""
        return matched(workload, match_contraction)

    def rank(self, form: ContractionForm, arch: CpuArch) -> Sequence[Ranked[RegisterTileConfig]]:
        """Return the configuration space: tiles, loop orders, packing; with predicted cycles."""
        return register_tile_hints(form, arch)

    def signature(self, form: ContractionForm) -> str:
        """Return a key that is equal for workloads that differ only in their epilogue."""
        return tile_signature(form)
