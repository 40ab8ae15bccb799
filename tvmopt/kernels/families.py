"""Registry of kernel families, in matching order; the last family accepts every workload."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from tvmopt.device.arch import Arch
from tvmopt.device.cpu import CpuArch
from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.family import Family

_CPU = (
    "cpu.elementwise.family.Elementwise",
    "cpu.winograd.family.Winograd",
    "cpu.matrix_tile.family.MatrixTile",
    "cpu.register_tile.family.RegisterTile",
    "cpu.batched_gemm.family.BatchedGemm",
    "cpu.depthwise_dot.family.DepthwiseDot",
    "cpu.window.family.Window",
    "cpu.row_reduction.family.RowReduction",
    "cpu.column_reduction.family.ColumnReduction",
    "cpu.strided_window.family.StridedWindow",
    "cpu.contraction.family.Contraction",
    "cpu.contraction.family.ContractionInPlace",
    "cpu.fallback.family.Fallback",
)
_CUDA_COMPUTE_BOUND = (
    "cuda.hopper.attention.family.HopperAttention",
    "cuda.mma.attention.family.MmaAttention",
    "cuda.hopper.family.HopperGemm",
    "cuda.hopper.family.HopperConv",
    "cuda.mma.family.MmaMatmul",
    "cuda.winograd.conv_family.WinogradConvolution",
    "cuda.few_filters.family.FewFilters",
    "cuda.simt.family.SimtMatmul",
)
_CUDA_MEMORY_BOUND = (
    "cuda.winograd.family.WinogradData",
    "cuda.winograd.family.WinogradOutput",
    "cuda.elementwise.family.CudaElementwise",
    "cuda.elementwise.family.Transpose",
    "cuda.elementwise.family.Copy",
    "cuda.gemv.family.Gemv",
    "cuda.int4.family.Int4Gemv",
    "cuda.row_reduction.family.CudaRowReduction",
    "cuda.column_reduction.family.CudaColumnReduction",
    "cuda.column_reduction.family.CudaColumnWalk",
    "cuda.window.family.CudaWindow",
    "cuda.block_reduction.family.BlockReduction",
    "cuda.window.family.CudaFallback",
)
# By kind of device. On a CPU no family is limited to memory-bound workloads.
_ALL = {CpuArch.kind: _CPU, CudaArch.kind: (*_CUDA_COMPUTE_BOUND, *_CUDA_MEMORY_BOUND)}
_MEMORY_BOUND = {CpuArch.kind: _CPU, CudaArch.kind: _CUDA_MEMORY_BOUND}


@functools.cache
def _loaded(paths: Sequence[str]) -> tuple[Family[Any, Any], ...]:
    """Import the families, which import TVM, and instantiate each once."""
    found = []
    for path in paths:
        module, _, name = path.rpartition(".")
        found.append(getattr(importlib.import_module(f"tvmopt.kernels.{module}"), name)())
    return tuple(found)


def memory_bound(arch: Arch) -> tuple[Family[Any, Any], ...]:
    """Return the families for memory-bound workloads; all families of a CPU."""
    return _loaded(_MEMORY_BOUND[arch.kind])


def families_of(arch: Arch) -> tuple[Family[Any, Any], ...]:
    """Return every family for the device kind of ``arch``, CPU or CUDA, in matching order."""
    return _loaded(_ALL[arch.kind])


@functools.cache
def by_name() -> dict[str, Family[Any, Any]]:
    """Return every family, keyed by the name that hints and tuning records hold."""
    every = _loaded((*_CPU, *_CUDA_COMPUTE_BOUND, *_CUDA_MEMORY_BOUND))
    return {family.name: family for family in every}
