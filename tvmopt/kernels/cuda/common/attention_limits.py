"""Problems of attention that tensor cores of GPUs compute in one kernel."""

from __future__ import annotations

import math

from tvmopt.kernels.attention.problem import AttentionProblem
from tvmopt.kernels.workload import Refusal

#: Head sizes: the bounds, and the unit, since kernels load 16 bytes at once.
LEAST_SIZE, MOST_SIZE, SIZE_UNIT = 32, 256, 8
_MOST_ELEMENTS = 2**31 - 1


def why_not_fused(problem: AttentionProblem) -> Refusal | None:
    """Return why no kernel can compute ``problem``; None where one may."""
    p = problem
    if p.dtype not in ("float16", "bfloat16"):
        return Refusal(f"fused attention takes float16 and bfloat16, not {p.dtype}")
    for size in (p.head_size, p.value_size):
        if size % SIZE_UNIT or not LEAST_SIZE <= size <= MOST_SIZE:
            return Refusal(
                f"a head has {LEAST_SIZE} to {MOST_SIZE} elements, a multiple of {SIZE_UNIT}, "
                f"not {size}"
            )
    for axes in (p.q_axes, p.k_axes, p.v_axes, p.out_axes):
        if axes[-1] != "d":
            return Refusal(f"kernels load operands whose last axis is the head size, not {axes}")
    if p.heads % p.kv_heads:
        return Refusal(f"{p.kv_heads} heads of K and V must divide {p.heads} heads of Q")
    if not p.scale > 0:
        return Refusal(f"the scale of the scores must be positive, not {p.scale}")
    if p.mask_shape is not None and p.mask_dtype not in ("bool", "float16", "bfloat16", "float32"):
        return Refusal(f"a mask of {p.mask_dtype} is neither boolean nor a float")
    if p.mask_shape is not None and math.prod(p.mask_shape) > _MOST_ELEMENTS:
        return Refusal(f"a mask has at most {_MOST_ELEMENTS} elements, which int32 indexes")
    return None
