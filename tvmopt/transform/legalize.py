"""Convolutions that TVM cannot turn into TensorIR, or not well: blocked channels, HWNC, groups.

before -> after: ``conv2d(data, weight, data_layout="NCHW16c")`` -> ``call_tir(conv2d, ...)`` of a
padding stage and one reduction whose indices are affine and whose innermost output axis reads the
weight (a depthwise convolution: the data too) with stride 1, so that schedules vectorise it.
Products of float16 and bfloat16 are summed in float32, those of integers in int32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst

from tvmopt.transform.winograd import call_winograd, choose_tile, winograd_weight

Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

_HALF = ("float16", "bfloat16")


def legalize_map(winograd: bool = False) -> dict[str, Legalize]:
    """What ``relax.transform.LegalizeOps`` takes as ``customize_legalize_map``.

    Args:
        winograd: Whether 3 x 3 convolutions may take fewer multiplications, where that is faster
            (:mod:`tvmopt.transform.winograd`).
    """
    return {
        "relax.nn.conv2d": _conv2d_with_winograd if winograd else _conv2d,
        "relax.nn.conv2d_transpose": _conv2d_transpose,
    }


def sum_dtype(data: str, out: str) -> str:
    """Type that a convolution of ``data`` with a result of type ``out`` sums in."""
    if data in _HALF:
        return "float32"
    return "int32" if "int" in data else out


def conv2d_blocked(
    data: te.Tensor,
    weight: te.Tensor,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    out_dtype: str,
) -> te.Tensor:
    """Convolution in ``NCHW{c}c``.

    Args:
        data: (n, channels / c, h, w, c).
        weight: (outputs / o, channels / groups / i, kernel h, kernel w, i, o); of a depthwise
            convolution (channels / c, 1, kernel h, kernel w, 1, c).
        strides: Along h and w.
        padding: Top, left, bottom, right.
        dilation: Along h and w.
        groups: Number of groups; blocks must not straddle them.
        out_dtype: Type of the result.

    Returns:
        (n, outputs / o, out h, out w, o).
    """
    batch, _, height, width, _ = _ints(data.shape)
    out_outer, in_outer, kh, kw, in_inner, out_inner = _ints(weight.shape)
    out_h, out_w = _out_size((height, width), (kh, kw), strides, padding, dilation)
    padded = _pad(data, (2, 3), padding)
    acc = sum_dtype(str(data.dtype), out_dtype)
    ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
    depthwise = in_outer * in_inner == 1 and groups == out_outer * out_inner
    shape = (batch, out_outer, out_h, out_w, out_inner)

    def place(y: Any, x: Any) -> tuple[Any, Any]:
        return (
            y * strides[0] + ry * dilation[0],
            x * strides[1] + rx * dilation[1],
        )

    if depthwise:
        return _cast(
            te.compute(
                shape,
                lambda n, co, y, x, ci: te.sum(
                    padded[(n, co, *place(y, x), ci)].astype(acc)
                    * weight[co, 0, ry, rx, 0, ci].astype(acc),
                    axis=[ry, rx],
                ),
                name="conv2d",
            ),
            out_dtype,
        )
    ro, ri = te.reduce_axis((0, in_outer), "ro"), te.reduce_axis((0, in_inner), "ri")
    per_group = out_outer // groups

    def channel(co: Any) -> Any:
        return ro if groups == 1 else co // per_group * in_outer + ro

    return _cast(
        te.compute(
            shape,
            lambda n, co, y, x, ci: te.sum(
                padded[(n, channel(co), *place(y, x), ri)].astype(acc)
                * weight[co, ro, ry, rx, ri, ci].astype(acc),
                axis=[ro, ry, rx, ri],
            ),
            name="conv2d",
        ),
        out_dtype,
    )


def conv2d_plain(
    data: te.Tensor,
    weight: te.Tensor,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    out_dtype: str,
    layouts: tuple[str, str],
) -> te.Tensor:
    """Convolution whose data and weight lie in any order of ``NHWC`` and ``HWIO``.

    Args:
        data: Data, in the order of ``layouts[0]``.
        weight: Weight, in the order of ``layouts[1]``; I is channels / groups.
        strides: Along h and w.
        padding: Top, left, bottom, right.
        dilation: Along h and w.
        groups: Number of groups.
        out_dtype: Type of the result.
        layouts: Of data and weight: ``("HWNC", "HWOI")``.

    Returns:
        The result, in the order of the data.
    """
    data_layout, kernel_layout = layouts
    size = dict(zip(data_layout, _ints(data.shape), strict=True))
    kernel = dict(zip(kernel_layout, _ints(weight.shape), strict=True))
    out_h, out_w = _out_size(
        (size["H"], size["W"]), (kernel["H"], kernel["W"]), strides, padding, dilation
    )
    padded = _pad(data, (data_layout.index("H"), data_layout.index("W")), padding)
    acc = sum_dtype(str(data.dtype), out_dtype)
    ry, rx = te.reduce_axis((0, kernel["H"]), "ry"), te.reduce_axis((0, kernel["W"]), "rx")
    rc = te.reduce_axis((0, kernel["I"]), "rc")
    depthwise = kernel["I"] == 1 and kernel["O"] == groups
    per_group = kernel["O"] // groups
    out_size = {"N": size["N"], "H": out_h, "W": out_w, "C": kernel["O"]}

    def compute(*axes: Any) -> Any:
        at = dict(zip(data_layout, axes, strict=True))
        if depthwise:
            channel = at["C"]
        elif groups == 1:
            channel = rc
        else:
            channel = at["C"] // per_group * kernel["I"] + rc
        read = {
            "N": at["N"],
            "H": at["H"] * strides[0] + ry * dilation[0],
            "W": at["W"] * strides[1] + rx * dilation[1],
            "C": channel,
        }
        used = {"H": ry, "W": rx, "I": 0 if depthwise else rc, "O": at["C"]}
        value = padded[tuple(read[letter] for letter in data_layout)].astype(acc)
        factor = weight[tuple(used[letter] for letter in kernel_layout)].astype(acc)
        return te.sum(value * factor, axis=[ry, rx] if depthwise else [ry, rx, rc])

    shape = tuple(out_size[letter] for letter in data_layout)
    return _cast(te.compute(shape, compute, name="conv2d"), out_dtype)


def phase_weight(weight: te.Tensor, strides: tuple[int, int]) -> te.Tensor:
    """The weight of a transposed convolution as that of a plain one with all phases as channels.

    Args:
        weight: (kernel h, kernel w, channels, outputs).
        strides: Along h and w.

    Returns:
        (taps h, taps w, channels, stride h * stride w * outputs), zeros where a phase has fewer
        taps; taps run backwards.
    """
    kh, kw, channels, outputs = _ints(weight.shape)
    taps = [-(-k // s) for k, s in zip((kh, kw), strides, strict=True)]

    def element(ty: Any, tx: Any, c: Any, q: Any) -> Any:
        row = (taps[0] - 1 - ty) * strides[0] + q // (strides[1] * outputs)
        column = (taps[1] - 1 - tx) * strides[1] + q // outputs % strides[1]
        value = weight[row, column, c, q % outputs]
        if kh % strides[0] == 0 and kw % strides[1] == 0:
            return value
        inside = tirx.all(row < kh, column < kw)
        return tirx.if_then_else(inside, value, tirx.const(0, str(weight.dtype)))

    shape = (*taps, channels, strides[0] * strides[1] * outputs)
    return te.compute(shape, element, name="phase_weight")


def conv2d_transpose_phases(
    data: te.Tensor,
    weight: te.Tensor,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    out_size: tuple[int, int],
    out_dtype: str,
) -> te.Tensor:
    """Transposed convolution without groups or dilation, its result by phase.

    Output rows y with the same ``(y + top) % stride`` see the same taps, so each phase is a plain
    convolution of the data, and all phases together are one with more output channels: no
    multiplication by the zeros that the usual definition puts between the data.

    Args:
        data: (n, h, w, channels).
        weight: Of :func:`phase_weight`.
        strides: Along h and w.
        padding: What is cut off the full result: top, left, bottom, right.
        out_size: Height and width of the result.
        out_dtype: Type of the result.

    Returns:
        (n, rows, columns, stride h * stride w * outputs); :func:`interleave_phases` puts it
        together.
    """
    batch, *size, channels = _ints(data.shape)
    taps = _ints(weight.shape)[:2]
    first = [padding[k] // strides[k] for k in (0, 1)]
    count = [(padding[k] + out_size[k] - 1) // strides[k] - first[k] + 1 for k in (0, 1)]
    before = [max(0, taps[k] - 1 - first[k]) for k in (0, 1)]
    after = [max(0, first[k] + count[k] - size[k]) for k in (0, 1)]
    padded = _pad(data, (1, 2), (before[0], before[1], after[0], after[1]))
    acc = sum_dtype(str(data.dtype), out_dtype)
    ry, rx = te.reduce_axis((0, taps[0]), "ry"), te.reduce_axis((0, taps[1]), "rx")
    rc = te.reduce_axis((0, channels), "rc")
    shift = [first[k] + before[k] - (taps[k] - 1) for k in (0, 1)]
    result = te.compute(
        (batch, *count, int(weight.shape[3])),
        lambda n, y, x, q: te.sum(
            padded[n, y + shift[0] + ry, x + shift[1] + rx, rc].astype(acc)
            * weight[ry, rx, rc, q].astype(acc),
            axis=[ry, rx, rc],
        ),
        name="conv2d_transpose",
    )
    return _cast(result, out_dtype)


def interleave_phases(
    phases: te.Tensor,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    out_size: tuple[int, int],
) -> te.Tensor:
    """The result of :func:`conv2d_transpose_phases` in its usual form: (n, h, w, outputs)."""
    batch, channels = int(phases.shape[0]), int(phases.shape[3])
    outputs = channels // (strides[0] * strides[1])
    first = [padding[k] // strides[k] for k in (0, 1)]

    def element(n: Any, y: Any, x: Any, c: Any) -> Any:
        row, column = y + padding[0], x + padding[1]
        phase = row % strides[0] * strides[1] + column % strides[1]
        at = row // strides[0] - first[0], column // strides[1] - first[1]
        return phases[(n, *at, phase * outputs + c)]

    return te.compute((batch, *out_size, outputs), element, name="interleave")


def _conv2d(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs = call.attrs
    layout, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
    blocked = len(layout) > 4 and layout.startswith("NCHW") and kernel.startswith("OIHW")
    narrow = str(call.ty.dtype) in _HALF  # TVM would sum in it
    plain = layout == "HWNC" or (layout == "NHWC" and (int(attrs.groups) > 1 or narrow))
    if str(attrs.out_layout) != layout or not (blocked or plain) or not _static(call):
        return _default(builder, call)
    settings: dict[str, Any] = {
        "strides": tuple(_ints(attrs.strides)),
        "padding": tuple(_ints(attrs.padding)),
        "dilation": tuple(_ints(attrs.dilation)),
        "groups": int(attrs.groups),
        "out_dtype": str(call.ty.dtype),
    }
    if not blocked:
        settings["layouts"] = (layout, kernel)
    return builder.call_te(
        conv2d_blocked if blocked else conv2d_plain,
        *call.args,
        **settings,
        primfunc_name_hint="conv2d",
    )


def _conv2d_with_winograd(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    m = _winograd_tile(call)
    if not m:
        return _conv2d(builder, call)
    data, weight = call.args
    transformed = relax.const(winograd_weight(weight.value.numpy(), m))
    top, left, bottom, right = _ints(call.attrs.padding)
    return call_winograd(builder, data, transformed, m, (top, left, bottom, right))


def _winograd_tile(call: relax.Call) -> int:
    """The size of the tiles that a convolution should be computed in; 0 for one step by step."""
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    if layouts != ("NHWC", "HWIO", "NHWC") or not _static(call):
        return 0
    weight = call.args[1]
    if not isinstance(weight, GenericConst) or int(attrs.groups) != 1:
        return 0
    dtypes = {str(arg.ty.dtype) for arg in (*call.args, call)}
    steps = (*_ints(attrs.strides), *_ints(attrs.dilation))
    kh, kw, channels, outputs = _ints(weight.ty.shape)
    if dtypes != {"float32"} or set(steps) != {1} or (kh, kw) != (3, 3):
        return 0
    batch, height, width, _ = _ints(call.ty.shape)
    return choose_tile((batch, height, width), channels, outputs)


def _conv2d_transpose(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    simple = int(attrs.groups) == 1 and _ints(attrs.dilation) == [1, 1]
    if layouts != ("NHWC", "HWIO", "NHWC") or not simple or not _static(call):
        return _default(builder, call)
    data, weight = call.args
    strides = tuple(_ints(attrs.strides))
    settings: dict[str, Any] = {
        "strides": strides,
        "padding": tuple(_ints(attrs.padding)),
        "out_size": tuple(_ints(call.ty.shape)[1:3]),
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
    return builder.call_te(
        interleave_phases, phases, **settings, primfunc_name_hint="interleave"
    )


def _default(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """What TVM does; an operator that it cannot legalise comes back as it is."""
    return call.op.get_attr("FLegalize")(builder, call)


def _static(call: relax.Call) -> bool:
    shapes = [arg.ty.shape for arg in call.args]
    return all(
        shape is not None and all(isinstance(d, tirx.IntImm) for d in shape) for shape in shapes
    )


def _ints(values: Any) -> list[int]:
    return [int(v) for v in values]


def _out_size(
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> tuple[int, int]:
    high, wide = (
        (size[k] + padding[k] + padding[k + 2] - (kernel[k] - 1) * dilation[k] - 1) // strides[k]
        + 1
        for k in (0, 1)
    )
    return high, wide


def _pad(data: te.Tensor, axes: tuple[int, int], padding: tuple[int, int, int, int]) -> te.Tensor:
    if not any(padding):
        return data
    before, after = [0] * len(data.shape), [0] * len(data.shape)
    for k, axis in enumerate(axes):
        before[axis], after[axis] = padding[k], padding[k + 2]
    return topi.nn.pad(data, before, after, name="pad")


def _cast(result: te.Tensor, dtype: str) -> te.Tensor:
    if str(result.dtype) == dtype:
        return result
    return te.compute(result.shape, lambda *at: result[at].astype(dtype), name="cast")

