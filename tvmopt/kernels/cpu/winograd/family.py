"""Winograd convolution on CPUs."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.cpu_family import CpuFamily
from tvmopt.kernels.cpu.common.matched import matched
from tvmopt.kernels.cpu.common.tile_signature import tile_signature
from tvmopt.kernels.cpu.winograd.config import NAME, WinogradConfig
from tvmopt.kernels.cpu.winograd.schedule import WinogradForm, emit, match_winograd
from tvmopt.kernels.cpu.winograd.space import winograd_hints
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

# Relative build time: the unrolled transforms are long straight-line code.
_BUILD_EFFORT = 3.0


class Winograd(CpuFamily[WinogradForm, WinogradConfig]):
    """L2 blocks of tiles x channels: input transform, batched GEMM, output transform, epilogue."""

    name = NAME
    schedule = staticmethod(emit)
    config_type = WinogradConfig
    kind = "winograd"
    exclusive = True
    last_resort_follows = True
    #: In measurements the best was in the top-3 of most workloads, and the top-3 within 1 % in all.
    budget = 0.6

    def match(self, workload: Workload, arch: CpuArch) -> WinogradForm | Refusal:
        """Return the stages of a function that is lowered as a Winograd convolution."""
        return matched(workload, match_winograd)

    def rank(self, form: WinogradForm, arch: CpuArch) -> Sequence[Ranked[WinogradConfig]]:
        """Return the configuration space: L2 blocks, register tiles; with predicted cycles."""
        return winograd_hints(form, arch)

    def signature(self, form: WinogradForm) -> str:
        """Return a key that is equal for workloads that differ only in their epilogue."""
        return tile_signature(form)

    def build_effort(self, hint: WinogradConfig) -> float:
        """Return the relative build time of the kernel; 1.0 is a usual kernel."""
        return _BUILD_EFFORT
