"""Legalize convolutions that TVM cannot lower, or lowers inefficiently: NCHWc, HWNC, groups.

before -> after: ``conv2d(data, weight, data_layout="NCHW16c")`` -> ``call_tir(conv2d, ...)``: a
padding stage and one reduction with affine indices. The innermost output axis reads the weight with
stride 1 (in a depthwise convolution the data too), so that schedules can vectorise it. 16-bit
floats accumulate in float32, integers in int32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx, topi

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.transform.arg_extrema import arg_extrema
from tvmopt.transform.conv2d import (
    COLUMNS,
    ROWS,
    conv2d_blocked,
    conv2d_one_channel,
    conv2d_plain,
    ints,
)
from tvmopt.transform.conv2d_call import layouts_of
from tvmopt.transform.conv2d_transpose import (
    conv2d_transpose_phases,
    interleave_phases,
    phase_weight,
)
from tvmopt.transform.integer.values import static_shape
from tvmopt.transform.k_granularity import DOT_DTYPES, missing_k
from tvmopt.transform.packed_weight import matmul_packed
from tvmopt.transform.powers import power_by_products
from tvmopt.transform.wide_sums import wide_sums
from tvmopt.transform.winograd import WinogradRule

Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def legalize_map(winograd: WinogradRule | None = None) -> dict[str, Legalize]:
    """Return the ``customize_legalize_map`` for ``relax.transform.LegalizeOps``.

    Args:
        winograd: Rule that selects and rewrites 3 x 3 convolutions for Winograd's algorithm
            (:mod:`tvmopt.transform.winograd`); None for direct convolutions only.
    """
    return {
        "relax.matmul": _matmul,
        "relax.nn.conv2d": or_winograd(winograd, _conv2d),
        "relax.nn.conv2d_transpose": _conv2d_transpose,
        "relax.nn.prelu": _prelu,
        "relax.power": power_by_products,
        **dict.fromkeys(("relax.reshape", "relax.squeeze", "relax.expand_dims"), _reshape),
        "relax.sign": _sign,
        **arg_extrema(),
        **wide_sums(),
    }


def _sign(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return -1, 0 or 1, and NaN for NaN, which TVM's legalization turns into 0."""

    def sign(x: Any) -> Any:
        def of(*index: Any) -> Any:
            value = x(*index)
            zero, one = tirx.const(0, x.dtype), tirx.const(1, x.dtype)
            low = tirx.Select(value < zero, zero - one, value)
            return tirx.Select(value > zero, one, low)

        return te.compute(x.shape, of, name="sign", tag=topi.tag.ELEMWISE)

    if not str(call.ty.dtype).startswith(("float", "bfloat")):
        return _default(builder, call)
    return builder.call_te(sign, call.args[0], primfunc_name_hint="sign")


def _prelu(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize PReLU in one block; TVM stores a single slope as a vector, and nothing fuses."""
    data, slope = call.args
    axis = int(call.attrs.axis) % data.ty.ndim
    single = static_shape(slope) == (1,)

    def prelu(x: te.Tensor, slopes: te.Tensor) -> te.Tensor:
        def of(*index: Any) -> Any:
            value, factor = x(*index), slopes(0 if single else index[axis])
            return tirx.Select(value > tirx.const(0, x.dtype), value, value * factor)

        return te.compute(x.shape, of, name="prelu", tag=topi.tag.BROADCAST)

    return builder.call_te(prelu, data, slope, primfunc_name_hint="prelu")


def or_winograd(winograd: WinogradRule | None, plain: Legalize) -> Legalize:
    """Return a legalization that uses ``plain`` where ``winograd`` does not apply."""
    if winograd is None:
        return plain

    def run(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        m = winograd.tile(call)
        return winograd.rewrite(builder, call, m, {}) if m else plain(builder, call)

    return run


def _conv2d(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs = call.attrs
    layout, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
    data, weight = call.args
    if layouts_of(call) in (ROWS, COLUMNS):
        return builder.call_te(
            conv2d_one_channel,
            data,
            weight,
            strides=tuple(ints(attrs.strides)),
            padding=tuple(ints(attrs.padding)),
            dilation=tuple(ints(attrs.dilation)),
            out_dtype=str(call.ty.dtype),
            columns=layout == COLUMNS[0],
            primfunc_name_hint="conv2d",
        )
    blocked = len(layout) > 4 and layout.startswith("NCHW") and kernel.startswith("OIHW")
    # TVM would accumulate 16-bit floats in 16 bits.
    narrow = str(call.ty.dtype) in HALF_FLOATS or str(data.ty.dtype) in DOT_DTYPES
    plain = layout == "HWNC" or (layout == "NHWC" and (int(attrs.groups) > 1 or narrow))
    if str(attrs.out_layout) != layout or not (blocked or plain) or not _static(call):
        return _default(builder, call)
    settings: dict[str, Any] = {
        "strides": tuple(ints(attrs.strides)),
        "padding": tuple(ints(attrs.padding)),
        "dilation": tuple(ints(attrs.dilation)),
        "groups": int(attrs.groups),
        "out_dtype": str(call.ty.dtype),
    }
    if not blocked:
        settings["layouts"] = (layout, kernel)
    if layout == "NHWC" and int(attrs.groups) == 1:
        axis = kernel.index("I")
        weight = _padded(builder, weight, axis, missing_k(data.ty.dtype, weight, axis))
    return builder.call_te(
        conv2d_blocked if blocked else conv2d_plain,
        data,
        weight,
        **settings,
        primfunc_name_hint="conv2d",
    )


def _matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize a matmul: unpack packed weights, pad K to the granularity of dot products."""
    packed = matmul_packed(builder, call)
    if packed is not None:
        return packed
    left, right = call.args
    ranks = [arg.ty.ndim for arg in call.args]
    if not _static(call) or min(ranks) < 2:
        return _default(builder, call)
    missing = missing_k(left.ty.dtype, left, ranks[0] - 1)
    if not missing:
        return _default(builder, call)
    left = _padded(builder, left, ranks[0] - 1, missing)
    right = _padded(builder, right, ranks[1] - 2, missing)
    product = relax.op.matmul(left, right, out_dtype=call.attrs.out_dtype)
    return _default(builder, builder.normalize(product))


def _padded(builder: relax.BlockBuilder, data: relax.Expr, axis: int, count: int) -> relax.Expr:
    """Append ``count`` zeros along ``axis`` of ``data``."""
    if not count:
        return data
    before = [0] * data.ty.ndim
    after = [count if i == axis else 0 for i in range(data.ty.ndim)]
    return builder.emit_te(topi.nn.pad, data, before, after, primfunc_name_hint="pad")


def _conv2d_transpose(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    simple = int(attrs.groups) == 1 and ints(attrs.dilation) == [1, 1]
    if layouts != ("NHWC", "HWIO", "NHWC") or not simple or not _static(call):
        return _default(builder, call)
    data, weight = call.args
    strides = tuple(ints(attrs.strides))
    settings: dict[str, Any] = {
        "strides": strides,
        "padding": tuple(ints(attrs.padding)),
        "out_size": tuple(ints(call.ty.shape)[1:3]),
    }
    weight = builder.emit_te(phase_weight, weight, strides, primfunc_name_hint="phase_weight")
    if strides == (1, 1):
        return builder.call_te(
            conv2d_transpose_phases,
            data,
            weight,
            **settings,
            out_dtype=str(call.ty.dtype),
            primfunc_name_hint="conv2d_transpose",
        )
    phases = builder.emit_te(
        conv2d_transpose_phases,
        data,
        weight,
        **settings,
        out_dtype=str(call.ty.dtype),
        primfunc_name_hint="conv2d_transpose",
    )
    return builder.call_te(interleave_phases, phases, **settings, primfunc_name_hint="interleave")


def _reshape(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize a reshape that only adds or drops axes of extent 1 without divisions.

    TVM divides flat indices. Besides the time, its simplification of affine indices loses a carry:
    ``(x % 32 + 2) // 4`` becomes ``(x + 2) % 32 // 4``.
    """
    source, target = static_shape(call.args[0]), static_shape(call)
    if source is None or target is None or _wide(source) != _wide(target):
        return _default(builder, call)
    axes = [axis for axis, extent in enumerate(target) if extent != 1]

    def reshape(x: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            wide = iter([index[axis] for axis in axes])
            return x(*(next(wide) if extent != 1 else 0 for extent in source))

        return te.compute(target, element, name="T_reshape", tag=topi.tag.INJECTIVE)

    name = call.op.name.removeprefix("relax.")
    return builder.call_te(reshape, call.args[0], primfunc_name_hint=name)


def _wide(shape: Sequence[int]) -> list[int]:
    return [extent for extent in shape if extent != 1]


def _default(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Apply TVM's legalization; an operator without one is returned unchanged."""
    return call.op.get_attr("FLegalize")(builder, call)


def _static(call: relax.Call) -> bool:
    shapes = [arg.ty.shape for arg in call.args]
    return all(
        shape is not None and all(isinstance(d, tirx.IntImm) for d in shape) for shape in shapes
    )
