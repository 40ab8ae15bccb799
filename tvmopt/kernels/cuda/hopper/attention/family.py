"""Kernel family: fused attention on Hopper with TMA and wgmma, in TIRx."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.attention.problem import ATTENTION_KIND, AttentionProblem, problem_of
from tvmopt.kernels.cuda.common.attention_limits import why_not_fused
from tvmopt.kernels.cuda.hopper.attention.attention import fused_attention
from tvmopt.kernels.cuda.hopper.attention.config import ATTENTION, HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.attention.space import attention_configs
from tvmopt.kernels.family import Family
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

_NO_ATTENTION = Refusal("not marked as attention")


class HopperAttention(Family[AttentionProblem, HopperAttentionConfig]):
    """Warp-specialised FlashAttention-3 forward; it matches by the attribute alone."""

    name = ATTENTION
    config_type = HopperAttentionConfig
    kind = ATTENTION_KIND
    share = 2

    def match(self, workload: Workload, arch: CudaArch) -> AttentionProblem | Refusal:
        """Return the problem that the function's attribute holds."""
        problem = problem_of(workload.func)
        if problem is None:
            return _NO_ATTENTION
        if not arch.has_wgmma:
            return Refusal("the GPU has no wgmma")
        return why_not_fused(problem) or problem

    def rank(
        self, form: AttentionProblem, arch: CudaArch
    ) -> Sequence[Ranked[HopperAttentionConfig]]:
        """Return the configurations, fastest predicted first."""
        return attention_configs(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: HopperAttentionConfig) -> tirx.PrimFunc | Refusal:
        """Emit the TIRx kernel in place of ``func``."""
        problem = problem_of(func)
        if problem is None:
            return _NO_ATTENTION
        name = func.attrs.get("global_symbol")
        return fused_attention(problem, hint, None if name is None else str(name))

    def spreads_non_finite(self, func: tirx.PrimFunc) -> bool:
        """Return True: a key that the mask hides has weight 0, and 0 times NaN is NaN."""
        return True

    def build_effort(self, hint: HopperAttentionConfig) -> float:
        """Return the build time relative to other kernels."""
        return 4.0
