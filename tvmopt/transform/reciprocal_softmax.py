"""Legalize softmax on a CPU with one division per row, in float32.

before -> after, along the last axis::

    y[i, k] = e[i, k] / s[i]            y[i, k] = e[i, k] * (1 / s[i])

A vector division takes 5 to 16 cycles, a multiplication at most one. TVM legalizes softmax of
16-bit floats with a sum in 16 bits; this legalization computes it in float32 and rounds the result.
Each result has a relative error of at most one more unit in the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.transform.integer.values import static_shape
from tvmopt.transform.wide_sums import in_float32

_SOFTMAX = "relax.nn.softmax"


def reciprocal_softmax() -> dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]]:
    """Return the legalization map of softmax."""
    return {_SOFTMAX: _legalize}


def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    [data] = call.args
    dtype, shape = str(data.ty.dtype), static_shape(data)
    if shape is None or dtype not in {"float32", *HALF_FLOATS}:
        return call.op.get_attr("FLegalize")(builder, call)
    axis = int(call.attrs.axis) % len(shape)
    if dtype == "float32":
        return builder.call_te(softmax, data, axis, primfunc_name_hint="softmax")
    return in_float32(builder, call, lambda x: softmax(x, axis))


def softmax(x: te.Tensor, axis: int) -> te.Tensor:
    """Return the softmax of ``x`` along ``axis``; the stages have the names of ``topi``'s."""
    rows = [extent for i, extent in enumerate(x.shape) if i != axis]
    length = x.shape[axis]

    def at(row: Sequence[Any], place: Any) -> list[Any]:
        return [*row[:axis], place, *row[axis:]]

    def row_of(index: Sequence[Any]) -> list[Any]:
        return [*index[:axis], *index[axis + 1 :]]

    step = te.reduce_axis((0, length), "k")
    largest = te.compute(
        rows, lambda *row: te.max(x(*at(row, step)), [step]), name="T_softmax_maxelem"
    )
    exponentials = te.compute(
        x.shape, lambda *i: tirx.exp(x(*i) - largest(*row_of(i))), name="T_softmax_exp"
    )
    term = te.reduce_axis((0, length), "k")
    total = te.compute(
        rows, lambda *row: te.sum(exponentials(*at(row, term)), [term]), name="T_softmax_expsum"
    )
    one = tirx.const(1.0, x.dtype)
    return te.compute(
        x.shape, lambda *i: exponentials(*i) * (one / total(*row_of(i))), name="T_softmax_norm"
    )
