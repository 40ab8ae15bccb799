"""TensorIR of transposed convolutions: one convolution with all phases as output channels."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvmopt.transform.conv2d import cast_result, ints, pad_data, sum_dtype


def phase_weight(weight: te.Tensor, strides: tuple[int, int]) -> te.Tensor:
    """Rearrange the weight of a transposed convolution for a convolution over all phases.

    Args:
        weight: (kernel h, kernel w, channels, outputs).
        strides: Strides along h and w.

    Returns:
        (taps h, taps w, channels, stride h * stride w * outputs), with zeros where a phase has
        fewer taps; the order of taps is reversed.
    """
    kh, kw, channels, outputs = ints(weight.shape)
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
    """Transposed convolution without groups and dilation; the result is ordered by phase.

    Output rows y with equal ``(y + top) % stride`` read the same taps. Each such phase is a plain
    convolution of the data, and all phases together form one convolution with more output channels.
    It skips the multiplications with the zeros that the usual definition inserts.

    Args:
        data: (n, h, w, channels).
        weight: Result of :func:`phase_weight`.
        strides: Strides along h and w.
        padding: Cropping of the full result: top, left, bottom, right.
        out_size: Output height and width.
        out_dtype: dtype of the result.

    Returns:
        (n, rows, columns, stride h * stride w * outputs), the input of :func:`interleave_phases`.
    """
    batch, *size, channels = ints(data.shape)
    taps = ints(weight.shape)[:2]
    first = [padding[k] // strides[k] for k in (0, 1)]
    count = [(padding[k] + out_size[k] - 1) // strides[k] - first[k] + 1 for k in (0, 1)]
    before = [max(0, taps[k] - 1 - first[k]) for k in (0, 1)]
    after = [max(0, first[k] + count[k] - size[k]) for k in (0, 1)]
    sides = [(0, 0), (before[0], after[0]), (before[1], after[1]), (0, 0)]
    padded = pad_data(data, sides)
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
    return cast_result(result, out_dtype)


def interleave_phases(
    phases: te.Tensor,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    out_size: tuple[int, int],
) -> te.Tensor:
    """Rearrange the result of :func:`conv2d_transpose_phases` to (n, h, w, outputs)."""
    batch, channels = int(phases.shape[0]), int(phases.shape[3])
    outputs = channels // (strides[0] * strides[1])
    first = [padding[k] // strides[k] for k in (0, 1)]

    def element(n: Any, y: Any, x: Any, c: Any) -> Any:
        row, column = y + padding[0], x + padding[1]
        phase = row % strides[0] * strides[1] + column % strides[1]
        at = row // strides[0] - first[0], column // strides[1] - first[1]
        return phases[(n, *at, phase * outputs + c)]

    return te.compute((batch, *out_size, outputs), element, name="interleave")
