"""Winograd convolution on CPUs."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.tile_signature import tile_signature
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.winograd.configs import winograd_hints
from tvmopt.kernels.cpu.winograd.schedule import NAME, WinogradForm, emit, prepare_winograd
from tvmopt.kernels.family import Family
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

# Relative build time: the unrolled transforms are long straight-line code.
_BUILD_EFFORT = 3.0


class Winograd(Family[WinogradForm, CpuHint]):
    """L2 blocks of tiles x channels: input transform, batched GEMM, output transform, epilogue."""

    name = NAME
    config_type = CpuHint
    kind = "winograd"
    exclusive = True
    last_resort_follows = True
    #: In measurements the best was in the top-3 of most workloads, and the top-3 within 1 % in all.
    budget = 0.6

    def match(self, workload: Workload, arch: CpuArch) -> WinogradForm | Refusal:
        """Return the stages of a function that is lowered as a Winograd convolution."""
        if workload.refusal is not None:
            return workload.refusal
        return workload.analysed(prepare_winograd) or Refusal("not lowered as Winograd convolution")

    def rank(self, form: WinogradForm, arch: CpuArch) -> Sequence[Ranked[CpuHint]]:
        """Return the configuration space: L2 blocks, register tiles; with predicted cycles."""
        return winograd_hints(form, arch)

    def signature(self, form: WinogradForm) -> str:
        """Return a key that is equal for workloads that differ only in their epilogue."""
        return tile_signature(form)

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` with the configuration ``hint``; None if it does not fit."""
        return emit(func, hint)

    def build_effort(self, hint: CpuHint) -> float:
        """Return the relative build time of the kernel; 1.0 is a usual kernel."""
        return _BUILD_EFFORT
