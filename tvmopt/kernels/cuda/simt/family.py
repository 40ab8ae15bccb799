"""Kernel family: GEMM with FMA instructions (SIMT), without tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.gemm_form import GemmForm, gemm_form_of
from tvmopt.kernels.cuda.simt.config import SimtConfig
from tvmopt.kernels.cuda.simt.schedule import NAME, emit
from tvmopt.kernels.cuda.simt.space import simt_matmul_hints
from tvmopt.kernels.family import Family, Found
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

# Build time of one unrolled multiply-add of a thread, relative to a small kernel.
_EFFORT_A_MULTIPLY_ADD = 1 / 400


class SimtMatmul(Family[GemmForm, SimtConfig]):
    """Register tile of accumulators a thread, operands in shared memory, FMA instructions."""

    name = NAME
    config_type = SimtConfig
    kind = "gemm"
    share = 4

    def wanted(self, workload: Workload, found: Sequence[Found]) -> bool:
        """Return whether no tensor-core family takes the GEMM, or it is in float32."""
        gemm = gemm_form_of(workload)
        if isinstance(gemm, Refusal):
            return False
        return gemm.a.dtype == "float32" or not any(f.ranked for f in found)

    def match(self, workload: Workload, arch: CudaArch) -> GemmForm | Refusal:
        """Return the GEMM in normal form ``C[s, i, j] += A[s, i, k] * B[s, j, k]``."""
        return gemm_form_of(workload)

    def rank(self, form: GemmForm, arch: CudaArch) -> Sequence[Ranked[SimtConfig]]:
        """Return the configurations, fastest predicted first."""
        return simt_matmul_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: SimtConfig) -> s_tir.Schedule | Refusal:
        """Schedule ``func`` as configured by ``hint``."""
        return emit(func, hint)

    def build_effort(self, hint: SimtConfig) -> float:
        """Return the build time relative to other kernels."""
        return 1.0 + hint.fmas_per_k_block * _EFFORT_A_MULTIPLY_ADD
