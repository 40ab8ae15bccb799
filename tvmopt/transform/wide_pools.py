"""Legalize max pooling of bfloat16 on a CPU with comparisons in float32.

before -> after: ``max_pool2d(x: bfloat16) -> cast(max_pool2d(cast(x, float32)), bfloat16)``, one
function. The maximum is one of the values, so nothing is rounded. No CPU compares bfloat16: TVM
converts both operands of each comparison and selects among 16-bit values, which takes four times as
many instructions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from tvm import relax, te, topi

from tvmopt.transform.wide_sums import in_float32

_POOLS = {
    "relax.nn.max_pool1d": topi.nn.pool1d,
    "relax.nn.max_pool2d": topi.nn.pool2d,
    "relax.nn.max_pool3d": topi.nn.pool3d,
}


def wide_pools() -> dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]]:
    """Return the legalization map by operator; other dtypes use TVM's legalization."""
    return {name: functools.partial(_legalize, pool) for name, pool in _POOLS.items()}


def _legalize(
    pool: Callable[..., te.Tensor], builder: relax.BlockBuilder, call: relax.Call
) -> relax.Expr:
    [data], attrs = call.args, call.attrs
    if str(data.ty.dtype) != "bfloat16" or attrs.out_layout != attrs.layout:
        return call.op.get_attr("FLegalize")(builder, call)

    def pooled(x: te.Tensor) -> te.Tensor:
        return pool(
            x,
            kernel=attrs.pool_size,
            stride=attrs.strides,
            dilation=attrs.dilation,
            padding=attrs.padding,
            pool_type="max",
            ceil_mode=attrs.ceil_mode,
            layout=attrs.layout,
        )

    return in_float32(builder, call, pooled)
