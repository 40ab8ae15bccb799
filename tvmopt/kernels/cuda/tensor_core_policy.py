"""TensorCorePolicy: a product and a GPU -> configurations of mma.sync kernels.

Names and signatures are those of the fast dlight proposal for CUDA (TVM community forum, 2024)::

    func, tags = get_tensorized_func_and_tags(func, target)
    if tags:
        policy = TensorCorePolicy(func=func, arch=arch, tags=tags)
        configs = policy.emit_config(20)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.target import Target

from tvmopt.device.cuda import CudaArch
from tvmopt.errors import ConfigError
from tvmopt.kernels.analysis import why_not_schedulable
from tvmopt.kernels.cuda.common.product import product_of
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.intrinsics.mma import ACCUMULATORS
from tvmopt.kernels.cuda.mma.configs import mma_hints
from tvmopt.kernels.ranked import Ranked, spread

_TAGS = ("tensorcore_config", "pipeline_stage", "use_async_copy")
# Types that tensor cores multiply, and those in which they sum.
_TYPES = {(dtype, sums) for dtype, found in ACCUMULATORS.items() for sums in found}


class TensorCorePolicy:
    """Ranks the configurations of one product on tensor cores.

    Args:
        func: A TensorIR function, in the normal form or as FuseTIR leaves it.
        arch: The GPU to schedule for.
        tags: ``pipeline_stage``, the most steps in flight, and ``use_async_copy``, whether they
            may be copied asynchronously; without tags as many as pay. ``tensorcore_config`` names
            the axes of the result that a tile divides, always the last two.

    Raises:
        ConfigError: When ``tags`` holds something else.

    Attributes:
        reason: Why no configuration takes the function; None when one does.
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
        self.func = func
        self.arch = arch
        self._stages = stages
        self._async = bool(tags.get("use_async_copy", True))
        self.reason = why_not_schedulable(func)
        if self.reason is None and not self.ranked:
            self.reason = "not a product that this GPU's tensor cores take"

    def emit_config(self, topk: int) -> list[CudaHint]:
        """``topk`` configurations to measure; none when the tensor cores do not take the function.

        The first is the most promising, which a build without measuring uses.
        """
        return [ranked.hint for ranked in spread(self.ranked, topk)]

    @functools.cached_property
    def ranked(self) -> list[Ranked[CudaHint]]:
        """Every configuration with its modelled cycles, the cheapest first."""
        product = product_of(self.func)
        if product is None:
            return []
        return mma_hints(product, self.arch, self._stages, self._async)


def get_tensorized_func_and_tags(
    func: tirx.PrimFunc, target: Target | CudaArch
) -> tuple[tirx.PrimFunc, dict[str, Any] | None]:
    """``func`` with its product as C[S, I, J] += A[S, I, K] * B[S, J, K], and what to tune.

    Args:
        func: A TensorIR function.
        target: The GPU that it is for.

    Returns:
        The function in the normal form and its tags for :class:`TensorCorePolicy`; ``func`` as it
        is and None when it has no product that tensor cores take.
    """
    sm = target.sm if isinstance(target, CudaArch) else _compute_capability(target)
    product = product_of(func) if sm >= 80 else None
    if product is None or (product.a.dtype, product.sums) not in _TYPES:
        return func, None
    if (product.b.dtype, product.sums) not in _TYPES:
        return func, None
    tags = {"tensorcore_config": [1, 2], "pipeline_stage": 4, "use_async_copy": 1}
    return product.sch.mod["main"], tags


def _compute_capability(target: Target) -> int:
    arch = str(target.attrs.get("arch", ""))
    digits = "".join(c for c in arch if c.isdigit())
    return int(digits) if digits else 0
