"""TensorCorePolicy: rank mma.sync configurations of a GEMM for one GPU.

Names and signatures follow the fast dlight proposal for CUDA (TVM community forum, 2024)::

    func, tags = get_tensorized_func_and_tags(func, target)
    if tags:
        policy = TensorCorePolicy(func=func, arch=arch, tags=tags)
        configs = policy.emit_config(20)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.target import Target

from tvmopt.device.cuda import CudaArch
from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.common.gemm_form import gemm_form
from tvmopt.kernels.cuda.intrinsics.mma import ACCUMULATORS
from tvmopt.kernels.cuda.mma.family import MmaMatmul
from tvmopt.kernels.policies import Policy
from tvmopt.kernels.tf32 import why_not_tensor_cores
from tvmopt.kernels.workload import Refusal

_TAGS = ("tensorcore_config", "pipeline_stage", "use_async_copy")
# Pairs of operand dtype and accumulator dtype of the tensor cores.
_TYPES = {(dtype, accumulator) for dtype, found in ACCUMULATORS.items() for accumulator in found}


class TensorCorePolicy(Policy):
    """Rank the tensor-core configurations of one GEMM.

    Args:
        func: A TensorIR function, in the normal form or as FuseTIR leaves it.
        arch: The GPU to schedule for.
        tags: ``pipeline_stage``: most pipeline stages; ``use_async_copy``: whether to allow
            cp.async. Without tags, as many stages as pay. ``tensorcore_config`` names the output
            axes that are tiled, always the last two.

    Raises:
        ConfigError: When ``tags`` holds something else.
    """

    def __init__(
        self, func: tirx.PrimFunc, arch: CudaArch, tags: Mapping[str, Any] | None = None
    ) -> None:
        tags = tags or {}
        if unknown := sorted(set(tags) - set(_TAGS)):
            raise ConfigError(f"tags must be among {', '.join(_TAGS)}, but got {unknown}")
        stages = int(tags.get("pipeline_stage", 0))
        if stages < 0:
            raise ConfigError(f"pipeline_stage must be at least 0, but got {stages}")
        family = MmaMatmul(stages, bool(tags.get("use_async_copy", True)))
        super().__init__(func, arch, (family,))


def get_tensorized_func_and_tags(
    func: tirx.PrimFunc, target: Target | CudaArch
) -> tuple[tirx.PrimFunc, dict[str, Any] | None]:
    """Return ``func`` with its GEMM as C[S, I, J] += A[S, I, K] * B[S, J, K], and tags.

    Args:
        func: A TensorIR function.
        target: The GPU that it is for.

    Returns:
        The function in the normal form and its tags for :class:`TensorCorePolicy`; ``func``
        unchanged and None when it has no GEMM for tensor cores.
    """
    sm = target.sm if isinstance(target, CudaArch) else _compute_capability(target)
    gemm = gemm_form(func) if sm >= 80 else Refusal("no mma.sync with cp.async")
    if isinstance(gemm, Refusal):
        return func, None
    dtypes = [operand.dtype for operand in gemm.operands]
    if any((dtype, gemm.accumulator) not in _TYPES for dtype in dtypes):
        return func, None
    if any(why_not_tensor_cores(dtype, gemm.allow_tf32) for dtype in dtypes):
        return func, None
    tags = {"tensorcore_config": [1, 2], "pipeline_stage": 4, "use_async_copy": 1}
    return gemm.sch.mod["main"], tags


def _compute_capability(target: Target) -> int:
    arch = str(target.attrs.get("arch", ""))
    digits = "".join(c for c in arch if c.isdigit())
    return int(digits) if digits else 0
