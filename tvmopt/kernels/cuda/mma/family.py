"""GEMM and implicit-GEMM convolution by mma.sync on CUDA GPUs."""

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

# Fitted on an H200: predicted cycles are that many times too few where wgmma competes, and again
# where its kernel is a convolution, whose loads of pixels the model leaves out.
_BESIDE_WGMMA, _CONVOLUTION = 1.5, 2.0
# Candidates of so few columns or so short reductions are tried up to that many times the best's
# predicted cycles: they were 1.4 to 1.8 times as fast where the model says 3 to 5 times as slow.
_NEAR_THIN, _THIN_COLUMNS, _SHORT_REDUCTION = 6.0, 16, 64


class MmaMatmul(Family[Product, CudaHint]):
    """Tiles by warps: fragments from shared memory by ldmatrix, multiplied by mma.sync.

    ``hint.block`` is (rows, columns) of a thread block, ``hint.warp`` those of a warp,
    ``hint.rstep`` the K extent of a pipeline stage, ``hint.stages`` the stages (by cp.async with
    ``async_copy``, else at most 2 through registers), ``hint.raster`` rows of thread blocks in
    rasterisation order, ``hint.split_k`` parts of K, which a second kernel adds.

    Options: ``ahead``: 1 to load fragments one instruction ahead, with at least three stages;
    ``pack``: which operands are first copied to aligned whole tiles: 1 A, 2 B, 3 both.
    """

    name = NAME
    kind = "gemm"
    share = 4

    def match(self, workload: Workload, arch: CudaArch) -> Product | Refusal:
        """Return the GEMM in the normal form ``C[s, i, j] += A[s, i, k] * B[s, j, k]``."""
        return workload.analysed(product_of) or Refusal("not a GEMM")

    def rank(self, form: Product, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return every configuration that may pay; none for dtypes without tensor cores."""
        return mma_hints(form, arch)

    def weight(self, form: Product, arch: CudaArch, found: Sequence[Found]) -> float:
        """Return how many times too few the predicted cycles are beside wgmma."""
        images = any(f.ranked for f in found if f.family.kind == "convolution")
        beside = _BESIDE_WGMMA if arch.has_wgmma else 1.0
        return beside * (_CONVOLUTION if images else 1.0)

    def near(self, form: Product) -> float:
        """Return how many times the best's cycles a candidate may be predicted, to be tried."""
        _, _, columns, depth = form.extents
        thin = columns <= _THIN_COLUMNS or depth <= _SHORT_REDUCTION
        return _NEAR_THIN if thin else super().near(form)

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
        """Schedule ``func`` as ``hint`` says; None where it does not fit."""
        return emit(func, hint)

    def build_effort(self, hint: CudaHint) -> float:
        """Return the time to build the kernel, relative to that of other kernels."""
        return 4.0
