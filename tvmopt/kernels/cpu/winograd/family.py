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

# Time to build relative to other kernels: the transforms are much straight-line code.
_BUILD_EFFORT = 3.0


class Winograd(Family[WinogradForm, CpuHint]):
    """Tasks of tiles and channels: transform, one GEMM a point, transform back, epilogue."""

    name = NAME
    kind = "winograd"
    exclusive = True
    last_resort_follows = True
    #: The best came among the first three in most that were measured, within 1 % in all.
    budget = 0.6

    def match(self, workload: Workload, arch: CpuArch) -> WinogradForm | Refusal:
        """Return the stages of a function that was lowered as a Winograd convolution."""
        if workload.refusal is not None:
            return workload.refusal
        return workload.analysed(prepare_winograd) or Refusal("not lowered as Winograd convolution")

    def rank(self, form: WinogradForm, arch: CpuArch) -> Sequence[Ranked[CpuHint]]:
        """Return every task size and register tile that may pay."""
        return winograd_hints(form, arch)

    def signature(self, form: WinogradForm) -> str:
        """Return text that is equal for workloads that differ in their epilogue alone."""
        return tile_signature(form)

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` as ``hint`` says; None where it does not fit."""
        return emit(func, hint)

    def build_effort(self, hint: CpuHint) -> float:
        """Return the time to build the kernel, relative to that of other kernels."""
        return _BUILD_EFFORT
