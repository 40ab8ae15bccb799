"""ArgMax and ArgMin that always give a valid index.

before -> after: ``argmax(x, axis)`` -> ``call_tir(argmax, x)`` whose reduction begins with index 0
and -inf. TVM begins with index -1 and the smallest finite number, and so answers -1 for a row of
-inf. NaN is larger than nothing: among numbers it is not chosen, and a row of NaN gives 0, as in
ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def arg_extrema() -> dict[str, Legalize]:
    """For ``relax.transform.LegalizeOps``."""
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
    """Index of the first largest (``"argmax"``) or smallest element along an axis.

    Args:
        x: The data.
        axis: Not negative.
        keepdims: Whether the result keeps the axis, with extent 1.
        name: ``"argmax"`` or ``"argmin"``.
        index: dtype of the result.
    """
    larger = name == "argmax"

    def choose(left: Any, right: Any) -> tuple[Any, Any]:
        beats = right[1] > left[1] if larger else right[1] < left[1]
        earlier = tirx.all(right[1] == left[1], right[0] < left[0])
        wins = tirx.any(beats, earlier)
        return tirx.Select(wins, right[0], left[0]), tirx.Select(wins, right[1], left[1])

    def begin(of_index: str, of_value: str) -> tuple[Any, Any]:
        if "float" in of_value:
            return tirx.const(0, of_index), tirx.const(float("-inf" if larger else "inf"), of_value)
        limit = tirx.min_value(of_value) if larger else tirx.max_value(of_value)
        return tirx.const(0, of_index), limit

    reduce = te.comm_reducer(choose, begin, name=name)
    k = te.reduce_axis((0, x.shape[axis]), "k")
    rest = [e for i, e in enumerate(x.shape) if i != axis]

    def at(*i: Any) -> Any:
        return reduce((k.var.astype(index), x[(*i[:axis], k, *i[axis:])]), axis=k)

    found, _ = te.compute(rest, at, name=f"{name}_of")
    shape = [tirx.const(1, "int64") if i == axis else e for i, e in enumerate(x.shape)]
    if not keepdims:
        return te.compute(rest, lambda *i: found[i], name=name)
    return te.compute(shape, lambda *i: found[(*i[:axis], *i[axis + 1 :])], name=name)
