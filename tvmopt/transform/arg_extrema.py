"""Legalize argmax and argmin such that the index is always valid.

before -> after: ``argmax(x, axis)`` -> ``call_tir(argmax, x)``, where NaN and -inf count as the
smallest finite value, and the index is at least 0. TVM's reduction starts with index -1 and the
smallest finite value: a row of -inf returns -1, and a row of NaN its last index. Here both return
0, as in ONNX Runtime. Initial value and combiner stay TVM's own, because ``rfactor``, which the row
reduction schedule uses, accepts no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def arg_extrema() -> dict[str, Legalize]:
    """Return the legalization map for ``relax.transform.LegalizeOps``."""
    return {"relax.argmax": _legalize("argmax"), "relax.argmin": _legalize("argmin")}


def _legalize(name: str) -> Legalize:
    def run(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        data, attrs = call.args[0], call.attrs
        if attrs.axis is None or data.ty.shape is None:
            return call.op.get_attr("FLegalize")(builder, call)
        axis = int(attrs.axis) % data.ty.ndim
        index = str(call.ty.dtype)
        return builder.call_te(
            arg_extremum, data, axis, bool(attrs.keepdims), name, index, primfunc_name_hint=name
        )

    return run


def arg_extremum(x: te.Tensor, axis: int, keepdims: bool, name: str, index: str) -> te.Tensor:
    """Return the index of the first maximum (``"argmax"``) or minimum along an axis.

    Args:
        x: The data.
        axis: Non-negative axis.
        keepdims: Whether the result keeps the axis with extent 1.
        name: ``"argmax"`` or ``"argmin"``.
        index: dtype of the result.
    """
    larger = name == "argmax"
    limit = tirx.min_value(str(x.dtype)) if larger else tirx.max_value(str(x.dtype))

    def choose(left: Any, right: Any) -> tuple[Any, Any]:
        beats = left[1] > right[1] if larger else left[1] < right[1]
        earlier = tirx.all(left[1] == right[1], left[0] < right[0])
        index = tirx.Select(tirx.any(beats, earlier), left[0], right[0])
        return index, tirx.Select(beats, left[1], right[1])

    def begin(of_index: str, _of_value: str) -> tuple[Any, Any]:
        return tirx.const(-1, of_index), limit

    reduce = te.comm_reducer(choose, begin, name=name)
    k = te.reduce_axis((0, x.shape[axis]), "k")
    rest = [e for i, e in enumerate(x.shape) if i != axis]

    def at(*i: Any) -> Any:
        value = x[(*i[:axis], k, *i[axis:])]
        if "float" in str(x.dtype):  # comparisons with NaN are false
            value = tirx.Select(value > limit if larger else value < limit, value, limit)
        return reduce((k.var.astype(index), value), axis=k)

    found, _ = te.compute(rest, at, name=f"{name}_of")
    shape = [tirx.const(1, "int64") if i == axis else e for i, e in enumerate(x.shape)]

    def valid(*i: Any) -> Any:
        place = (*i[:axis], *i[axis + 1 :]) if keepdims else i
        return tirx.max(found[place], tirx.const(0, index))

    return te.compute(shape if keepdims else rest, valid, name=name)
