"""Batched GEMM of two activations on CPUs: attention."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.batched_gemm.config import NAME, BatchedGemmConfig
from tvmopt.kernels.cpu.batched_gemm.schedule import emit, unsuited
from tvmopt.kernels.cpu.batched_gemm.space import batched_gemm_hints
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm, match_contraction
from tvmopt.kernels.cpu.common.cpu_family import CpuFamily
from tvmopt.kernels.cpu.common.matched import matched
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class BatchedGemm(CpuFamily[ContractionForm, BatchedGemmConfig]):
    """Keeps a register tile of accumulators over K; reads B in place."""

    name = NAME
    schedule = staticmethod(emit)
    config_type = BatchedGemmConfig
    kind = "gemm"

    def match(self, workload: Workload, arch: CpuArch) -> ContractionForm | Refusal:
        """Return the workload's only contraction, if it is a batched GEMM of two activations."""
        form = matched(workload, match_contraction)
        return form if isinstance(form, Refusal) else unsuited(form, arch) or form

    def rank(self, form: ContractionForm, arch: CpuArch) -> Sequence[Ranked[BatchedGemmConfig]]:
        """Return the configuration space: tiles and loop orders, with predicted cycles."""
        return batched_gemm_hints(form, arch)
