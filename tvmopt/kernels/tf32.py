"""Attribute of a PrimFunc: its float32 factors may be rounded to TF32 in tensor cores.

TF32 has the range of float32 and 10 bits of the mantissa. Tensor cores drop the other 13 bits of
each factor (truncation), so a product is off by at most 2**-9 of itself. Sums stay float32.
"""

from __future__ import annotations

from tvm import tirx

from tvmopt.device.dtypes import TF32
from tvmopt.kernels.workload import Refusal

ALLOW_TF32 = "tvmopt.allow_tf32"


def allow_tf32(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``func`` with TF32 allowed."""
    return func.with_attr(ALLOW_TF32, True)


def allows_tf32(func: tirx.PrimFunc) -> bool:
    """Return whether TF32 is allowed in ``func``."""
    return bool((func.attrs or {}).get(ALLOW_TF32, False))


def why_not_tensor_cores(dtype: str, allowed: bool) -> Refusal | None:
    """Return why tensor cores must not multiply operands of ``dtype``; None where they may.

    Args:
        dtype: Dtype of the operands.
        allowed: Whether TF32 is allowed.
    """
    if dtype == "float32" and not allowed:
        return Refusal("float32 operands need allow_tf32 for tensor cores")
    return None


def tf32_tolerance(func: tirx.PrimFunc) -> float | None:
    """Return the tolerance of kernels of ``func`` where it is TF32's; None for the output's own."""
    is_float = str(func.params[-1].dtype) == "float32"
    return TF32.kernel_tolerance if is_float and allows_tf32(func) else None
