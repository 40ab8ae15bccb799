"""Reference kernel of a GPU function, against which candidates are checked."""

from __future__ import annotations

import math

from tvm import IRModule, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.gemm_form import gemm_form
from tvmopt.kernels.cuda.simt.space import simt_matmul_hints
from tvmopt.kernels.cuda.window.config import CudaFallbackConfig
from tvmopt.kernels.cuda.window.schedule import FALLBACK_NAME
from tvmopt.kernels.cuda.winograd.space import transform_of
from tvmopt.kernels.emit import emit_kernel
from tvmopt.kernels.workload import Refusal

# Multiply-adds from which on a GEMM takes seconds with one thread an element.
_LARGE_GEMM = 2**33
_THREADS = 128


def reference(func: tirx.PrimFunc, arch: CudaArch) -> tirx.PrimFunc:
    """Return ``func`` under TVM's simplest schedule: one thread an element, serial reductions.

    A GEMM that would take seconds gets the simplest register tile without tensor cores. A Winograd
    transform becomes one kernel for each half: a single kernel would take seconds to compile.
    """
    from tvm.s_tir import dlight

    if (tiles := tiled_gemm(func, arch)) is not None:
        return tiles
    if not isinstance(transform_of(func), Refusal):
        return emit_kernel(func, CudaFallbackConfig(FALLBACK_NAME, arch, _THREADS))

    with arch.to_tvm():
        module = dlight.ApplyDefaultSchedule(
            dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(), dlight.gpu.Fallback()
        )(IRModule({"main": func.without_attr("tirx.is_scheduled")}))
    return module["main"]


def tiled_gemm(func: tirx.PrimFunc, arch: CudaArch) -> tirx.PrimFunc | None:
    """Return a large GEMM with small register tiles; None where ``func`` is none."""
    gemm = gemm_form(func)
    if isinstance(gemm, Refusal) or math.prod(gemm.extents) < _LARGE_GEMM:
        return None
    plain = [r for r in simt_matmul_hints(gemm, arch) if r.hint.split_k == 1]
    if not plain:
        return None
    least = min(plain, key=lambda r: (r.hint.fmas_per_k_block, r.cycles))
    return emit_kernel(func, least.hint)
