"""Rebuild an anchor call with other operands and an explicit output dtype."""

from __future__ import annotations

import inspect

import tvm
from tvm import relax

TYPED_ANCHORS = (
    "nn.conv1d",
    "nn.conv2d",
    "nn.conv3d",
    "nn.conv1d_transpose",
    "nn.conv2d_transpose",
    "nn.conv3d_transpose",
    "matmul",
)
"""Anchor operators that can accumulate in, and give, another type than that of their operands."""


def with_operands(
    call: relax.Call, data: relax.Expr, weight: relax.Expr, out_dtype: str
) -> relax.Call:
    """Return ``call`` on ``data`` and ``weight`` with accumulator ``out_dtype``.

    Args:
        call: A call of one of :data:`TYPED_ANCHORS`, in any layout.
        data: First operand, of unchanged shape.
        weight: Second operand, of a shape and dtype that match ``data``.
        out_dtype: dtype of the accumulator and of the result.
    """
    name = call.op.name.removeprefix("relax.")
    if name == "matmul":
        return relax.op.matmul(data, weight, out_dtype)
    make = getattr(relax.op.nn, name.removeprefix("nn."))
    kept = set(inspect.signature(make).parameters) - {"data", "weight", "out_dtype"}
    attrs = {field: getattr(call.attrs, field) for field in kept}
    return make(data, weight, **attrs, out_dtype=out_dtype)


def operand_dtypes(call: relax.Call) -> tuple[str, str]:
    """Return the dtypes of the two operands; empty where an operand has none."""
    first, second = (str(getattr(arg.ty, "dtype", "") or "") for arg in call.args[:2])
    return first, second


def constant_data(expr: relax.Expr) -> tvm.runtime.Tensor | None:
    """Return the tensor of a constant, otherwise None."""
    value = getattr(expr, "value", None) if isinstance(expr, tvm.ir.GenericConst) else None
    return value if isinstance(value, tvm.runtime.Tensor) else None
