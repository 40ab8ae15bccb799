"""Kernel family: GEMM and implicit-GEMM convolution with warp MMA (mma.sync)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.product import Product, product_of
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.mma.configs import mma_hints
from tvmopt.kernels.cuda.mma.schedule import NAME, emit
from tvmopt.kernels.family import Family, Found
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

# Measured over predicted cycles, fitted on an H200: where wgmma competes; and again where its
# kernel is a convolution, since this model leaves out the loads of pixels.
_BESIDE_WGMMA, _CONVOLUTION = 1.5, 2.0
# For so few columns or so short reductions, try candidates up to this many times the best's
# predicted cycles: they were 1.4 to 1.8 times as fast where the model says 3 to 5 times as slow.
_NEAR_THIN, _THIN_COLUMNS, _SHORT_REDUCTION = 6.0, 16, 64


class MmaMatmul(Family[Product, CudaHint]):
    """Warp tiles: ldmatrix loads fragments from shared memory, mma.sync multiplies them.

    Fields of the hint:

    - ``block``: rows and columns of a thread block;
    - ``warp``: rows and columns of a warp;
    - ``rstep``: K extent of a pipeline stage;
    - ``stages``: stages, by cp.async with ``async_copy``, else at most 2 through registers;
    - ``raster``: rows of thread blocks in a raster group;
    - ``split_k``: split-K factor, through workspace with a reduction kernel.

    Options: ``ahead``: 1 to double-buffer fragments, with at least three stages; ``pack``: which
    operands are packed first: 1 A, 2 B, 3 both.
    """

    name = NAME
    config_type = CudaHint
    kind = "gemm"
    share = 4

    def match(self, workload: Workload, arch: CudaArch) -> Product | Refusal:
        """Return the GEMM in normal form ``C[s, i, j] += A[s, i, k] * B[s, j, k]``."""
        return workload.analysed(product_of) or Refusal("not a GEMM")

    def rank(self, form: Product, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return the configurations, fastest predicted first; none for dtypes without MMA."""
        return mma_hints(form, arch)

    def weight(self, form: Product, arch: CudaArch, found: Sequence[Found]) -> float:
        """Return measured over predicted cycles where wgmma competes."""
        images = any(f.ranked for f in found if f.family.kind == "convolution")
        beside = _BESIDE_WGMMA if arch.has_wgmma else 1.0
        return beside * (_CONVOLUTION if images else 1.0)

    def near(self, form: Product) -> float:
        """Return up to how many times the best's predicted cycles a candidate is tried."""
        _, _, columns, depth = form.extents
        thin = columns <= _THIN_COLUMNS or depth <= _SHORT_REDUCTION
        return _NEAR_THIN if thin else super().near(form)

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
        """Schedule ``func`` as configured by ``hint``; None where it does not fit."""
        return emit(func, hint)

    def build_effort(self, hint: CudaHint) -> float:
        """Return the build time relative to other kernels."""
        return 4.0
