"""Layout rules of operators with a layout attribute: pooling and resize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from tvmopt.transform.layout.form import LayoutForm
from tvmopt.transform.layout.rules.base import Follow, Operands, one_input
from tvmopt.transform.layout.tensors import Tensor

POOLS = {
    f"nn.{kind}_pool{rank}d": getattr(relax.op.nn, f"{kind}_pool{rank}d")
    for kind in ("max", "avg")
    for rank in (1, 2, 3)
}
ADAPTIVE = {
    f"nn.adaptive_avg_pool{rank}d": getattr(relax.op.nn, f"adaptive_avg_pool{rank}d")
    for rank in (1, 2, 3)
}


def pool(call: relax.Call, operands: Operands) -> Follow | None:
    """Max or average pooling over the spatial axes."""
    attrs = call.attrs
    op = POOLS[call.op.name.removeprefix("relax.")]

    def emit(layout: str, expr: relax.Expr) -> relax.Expr:
        return op(
            expr,
            _ints(attrs.pool_size),
            strides=_ints(attrs.strides),
            padding=_ints(attrs.padding),
            dilation=_ints(attrs.dilation),
            ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad),
            layout=layout,
        )

    return _in_layout(operands.tensor(call.args[0]), call, emit)


def adaptive_pool(call: relax.Call, operands: Operands) -> Follow | None:
    """Adaptive average pooling."""
    size = call.attrs.output_size
    op = ADAPTIVE[call.op.name.removeprefix("relax.")]

    def emit(layout: str, expr: relax.Expr) -> relax.Expr:
        return op(expr, None if size is None else _ints(size), layout=layout)

    return _in_layout(operands.tensor(call.args[0]), call, emit)


def resize2d(call: relax.Call, operands: Operands) -> Follow | None:
    """Image resize; TVM supports only NCHW, NHWC and NCHWc."""
    data, attrs = operands.tensor(call.args[0]), call.attrs

    def emit(layout: str, expr: relax.Expr) -> relax.Expr:
        return relax.op.image.resize2d(
            expr,
            call.args[1],
            roi=[float(r) for r in attrs.roi],
            layout=layout,
            method=str(attrs.method),
            coordinate_transformation_mode=str(attrs.coordinate_transformation_mode),
            rounding_method=str(attrs.rounding_method),
            cubic_alpha=float(attrs.cubic_alpha),
            cubic_exclude=int(attrs.cubic_exclude),
            extrapolation_value=float(attrs.extrapolation_value),
            out_dtype=attrs.out_dtype,
        )

    def known(name: str) -> bool:
        return name == "NHWC" or name.startswith("NCHW")

    letters = str(attrs.layout)
    also: tuple[LayoutForm, ...] = ()
    if sorted(letters) == sorted("NHWC"):
        also = tuple(LayoutForm(tuple(map(letters.index, name))) for name in ("NHWC", "NCHW"))
    return _in_layout(data, call, emit, known, also)


def _in_layout(
    data: Tensor | None,
    call: relax.Call,
    emit: Callable[[str, relax.Expr], relax.Expr],
    known: Callable[[str], bool] = lambda name: True,
    also: tuple[LayoutForm, ...] = (),
) -> Follow | None:
    letters = str(call.attrs.layout)
    out = str(getattr(call.attrs, "out_layout", letters))
    if data is None or len(letters) != len(data.shape) or out not in ("", letters):
        return None
    channel = letters.index("C")

    def possible(form: LayoutForm) -> bool:
        blocked = [axis for axis, _ in form.blocks]
        return known(form.name(letters)) and (
            not blocked or (blocked == [channel] and data.shape[channel] > 1)
        )

    return one_input(data, possible, lambda form, expr: emit(form.name(letters), expr), also=also)


def _ints(values: Any) -> list[int]:
    return [int(v) for v in values]
