"""Kernel family: GEMM and implicit-GEMM convolution with warp MMA (mma.sync)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.gemm_form import GemmForm, gemm_form_of
from tvmopt.kernels.cuda.mma.config import MmaConfig
from tvmopt.kernels.cuda.mma.schedule import NAME, emit
from tvmopt.kernels.cuda.mma.space import mma_hints
from tvmopt.kernels.family import Family
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

# For so few columns or so short reductions, try candidates up to this many times the best's
# predicted cycles: the model is up to 1.8 times too high there (an H200, 2026-11-28).
_NEAR_THIN, _THIN_COLUMNS, _SHORT_REDUCTION = 2.5, 16, 64


class MmaMatmul(Family[GemmForm, MmaConfig]):
    """Warp tiles: ldmatrix loads fragments from shared memory, mma.sync multiplies them.

    Args:
        most_stages: Most pipeline stages; 0 for as many as pay.
        async_copy: Whether to allow cp.async.
    """

    name = NAME
    config_type = MmaConfig
    kind = "gemm"
    share = 4

    def __init__(self, most_stages: int = 0, async_copy: bool = True) -> None:
        self._most_stages = most_stages
        self._async_copy = async_copy

    def match(self, workload: Workload, arch: CudaArch) -> GemmForm | Refusal:
        """Return the GEMM in normal form ``C[s, i, j] += A[s, i, k] * B[s, j, k]``."""
        return gemm_form_of(workload)

    def rank(self, form: GemmForm, arch: CudaArch) -> Sequence[Ranked[MmaConfig]]:
        """Return the configurations, fastest predicted first; none for dtypes without MMA."""
        return mma_hints(form, arch, self._most_stages, self._async_copy)

    def near(self, form: GemmForm) -> float:
        """Return up to how many times the best's predicted cycles a candidate is tried."""
        _, _, columns, depth = form.extents
        thin = columns <= _THIN_COLUMNS or depth <= _SHORT_REDUCTION
        return _NEAR_THIN if thin else super().near(form)

    def emit(self, func: tirx.PrimFunc, hint: MmaConfig) -> s_tir.Schedule | Refusal:
        """Schedule ``func`` as configured by ``hint``."""
        return emit(func, hint)

    def build_effort(self, hint: MmaConfig) -> float:
        """Return the build time relative to other kernels."""
        return 4.0
