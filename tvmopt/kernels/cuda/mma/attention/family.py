"""Kernel family: fused attention on Ampere and later with mma.sync and cp.async."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.attention.problem import ATTENTION_KIND, AttentionProblem, problem_of
from tvmopt.kernels.cuda.common.attention_limits import why_not_fused
from tvmopt.kernels.cuda.mma.attention.config import ATTENTION, MmaAttentionConfig
from tvmopt.kernels.cuda.mma.attention.kernel import mma_attention
from tvmopt.kernels.cuda.mma.attention.space import mma_attention_configs
from tvmopt.kernels.family import Family
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

_NO_ATTENTION = Refusal("not marked as attention")


class MmaAttention(Family[AttentionProblem, MmaAttentionConfig]):
    """FlashAttention-2 forward, and flash-decoding; it matches by the attribute alone."""

    name = ATTENTION
    config_type = MmaAttentionConfig
    kind = ATTENTION_KIND
    exclusive = True
    share = 2

    def match(self, workload: Workload, arch: CudaArch) -> AttentionProblem | Refusal:
        """Return the problem that the function's attribute holds."""
        problem = problem_of(workload.func)
        if problem is None:
            return _NO_ATTENTION
        if arch.sm < 80:
            return Refusal("the GPU has no cp.async")
        return why_not_fused(problem) or problem

    def rank(self, form: AttentionProblem, arch: CudaArch) -> Sequence[Ranked[MmaAttentionConfig]]:
        """Return the configurations, fastest predicted first."""
        return mma_attention_configs(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: MmaAttentionConfig) -> tirx.PrimFunc | Refusal:
        """Emit the kernel in place of ``func``."""
        problem = problem_of(func)
        if problem is None:
            return _NO_ATTENTION
        name = func.attrs.get("global_symbol")
        return mma_attention(problem, hint, None if name is None else str(name))

    def spreads_non_finite(self, func: tirx.PrimFunc) -> bool:
        """Return True: a key that the mask hides has weight 0, and 0 times NaN is NaN."""
        return True

    def build_effort(self, hint: MmaAttentionConfig) -> float:
        """Return the build time relative to other kernels."""
        return 3.0
