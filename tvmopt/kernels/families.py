"""The kernel families, in the order in which they are asked; the last one takes every workload."""

from __future__ import annotations

import functools
from typing import Any

from tvmopt.device.cpu import CpuArch
from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.family import Family


@functools.cache
def _cpu() -> tuple[Family[Any, Any], ...]:
    from tvmopt.kernels.cpu.column_reduction.family import ColumnReduction
    from tvmopt.kernels.cpu.contraction.family import Contraction, ContractionInPlace
    from tvmopt.kernels.cpu.elementwise.family import Elementwise
    from tvmopt.kernels.cpu.fallback.family import Fallback
    from tvmopt.kernels.cpu.matrix_tile.family import MatrixTile
    from tvmopt.kernels.cpu.register_tile.family import RegisterTile
    from tvmopt.kernels.cpu.row_reduction.family import RowReduction
    from tvmopt.kernels.cpu.strided_window.family import StridedWindow
    from tvmopt.kernels.cpu.window.family import Window
    from tvmopt.kernels.cpu.winograd.family import Winograd

    return (
        Elementwise(), Winograd(), MatrixTile(), RegisterTile(), Window(), RowReduction(),
        ColumnReduction(), StridedWindow(), Contraction(), ContractionInPlace(), Fallback(),
    )  # fmt: skip


@functools.cache
def _cuda() -> tuple[Family[Any, Any], ...]:
    from tvmopt.kernels.cuda.hopper.family import HopperConv, HopperGemm
    from tvmopt.kernels.cuda.mma.family import MmaMatmul
    from tvmopt.kernels.cuda.simt.family import SimtMatmul

    return (HopperGemm(), HopperConv(), MmaMatmul(), SimtMatmul(), *memory_bound())


@functools.cache
def memory_bound() -> tuple[Family[Any, Any], ...]:
    """CUDA families of workloads that are bound by memory."""
    from tvmopt.kernels.cuda.block_reduction.family import BlockReduction
    from tvmopt.kernels.cuda.column_reduction.family import CudaColumnReduction, CudaColumnWalk
    from tvmopt.kernels.cuda.elementwise.family import Copy, CudaElementwise, Transpose
    from tvmopt.kernels.cuda.gemv.family import Gemv
    from tvmopt.kernels.cuda.int4.family import Int4Gemv
    from tvmopt.kernels.cuda.row_reduction.family import CudaRowReduction
    from tvmopt.kernels.cuda.window.family import CudaFallback, CudaWindow
    from tvmopt.kernels.cuda.winograd.family import WinogradData, WinogradOutput

    return (
        WinogradData(), WinogradOutput(), CudaElementwise(), Transpose(), Copy(), Gemv(),
        Int4Gemv(), CudaRowReduction(), CudaColumnReduction(), CudaColumnWalk(), CudaWindow(),
        BlockReduction(), CudaFallback(),
    )  # fmt: skip


def families_of(arch: CpuArch | CudaArch) -> tuple[Family[Any, Any], ...]:
    """Return every family of the kind of device that ``arch`` is."""
    return _cpu() if isinstance(arch, CpuArch) else _cuda()


@functools.cache
def by_name() -> dict[str, Family[Any, Any]]:
    """Return every family by its name, the name that hints and tuning records hold."""
    return {family.name: family for family in (*_cpu(), *_cuda())}
