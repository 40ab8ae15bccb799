"""Kernel family: GEMM with FMA instructions (SIMT), without tensor cores."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.product import Product, product_of
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.simt.configs import simt_matmul_hints
from tvmopt.kernels.cuda.simt.schedule import NAME, emit
from tvmopt.kernels.family import Family, Found
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

# Build time of one unrolled multiply-add of a thread, relative to a small kernel.
_EFFORT_A_MULTIPLY_ADD = 1 / 400


class SimtMatmul(Family[Product, CudaHint]):
    """Register tile of accumulators a thread, operands in shared memory, FMA instructions.

    Fields of the hint:

    - ``block``: rows and columns of a thread block;
    - ``thread``: threads along rows and columns;
    - ``rstep``: K extent of a pipeline stage;
    - ``stages``: stages, by cp.async with ``async_copy``, else at most 2 through registers;
    - ``raster``: rows of thread blocks in a raster group;
    - ``split_k``: split-K factor, through workspace with a reduction kernel.

    Options: ``lanes_m``: rows of threads in a warp, 4 by default.
    """

    name = NAME
    config_type = CudaHint
    kind = "gemm"
    share = 4

    def wanted(self, workload: Workload, found: Sequence[Found]) -> bool:
        """Return whether no tensor-core family takes the GEMM, or it is in float32."""
        product = workload.analysed(product_of)
        if product is None:
            return False
        return product.a.dtype == "float32" or not any(f.ranked for f in found)

    def match(self, workload: Workload, arch: CudaArch) -> Product | Refusal:
        """Return the GEMM in normal form ``C[s, i, j] += A[s, i, k] * B[s, j, k]``."""
        return workload.analysed(product_of) or Refusal("not a GEMM")

    def rank(self, form: Product, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return the configurations, fastest predicted first."""
        return simt_matmul_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
        """Schedule ``func`` as configured by ``hint``; None where it does not fit."""
        return emit(func, hint)

    def build_effort(self, hint: CudaHint) -> float:
        """Return the build time relative to other kernels."""
        text = hint.rstep * math.prod(hint.block) / math.prod(hint.thread)
        return 1.0 + text * _EFFORT_A_MULTIPLY_ADD
