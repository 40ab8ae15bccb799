"""Converters of Fourier transforms: matmuls with a constant matrix of cosines and sines."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.frontend.converters.node import (
    Attributes,
    Inputs,
    constant,
    dtype_of,
    optional,
    static_shape,
)


def dft(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return the discrete Fourier transform along one axis; the last axis holds real, imaginary.

    Args:
        builder: Block builder to emit into.
        inputs: Signal (..., 1 or 2), and optionally the length of the transform and the axis.
        attributes: ``inverse``, ``onesided``, and ``axis`` of opset 17.
    """
    x = inputs[0]
    shape = static_shape(x)
    given, axis = optional(inputs, 1), optional(inputs, 2)
    if axis is not None:
        place = int(constant(axis, "axis").reshape(()))
    else:
        place = int(attributes.get("axis", -2 if "axis" not in attributes else 1))
    place %= len(shape)
    length = shape[place] if given is None else int(constant(given, "dft_length").reshape(()))
    inverse, onesided = bool(attributes.get("inverse", 0)), bool(attributes.get("onesided", 0))
    to_real = inverse and onesided  # from the first half of the spectrum of a real signal
    if to_real and given is None:
        length = 2 * (shape[place] - 1)
    used = min(length // 2 + 1 if to_real else length, shape[place])
    rows = length // 2 + 1 if onesided and not inverse else length
    dtype = dtype_of(x)
    cosine, sine = matrices(rows, used, length, inverse)
    if to_real:  # the other half of the spectrum mirrors the first
        twice = np.full(used, 2.0)
        twice[0] = 1.0
        if length % 2 == 0 and used == length // 2 + 1:
            twice[-1] = 1.0
        cosine, sine = cosine * twice, sine * twice
    real, imaginary = _parts(builder, x, place, used)
    order = _last(len(shape) - 1, place)

    def product(part: relax.Expr, matrix: np.ndarray) -> relax.Expr:
        return relax.op.matmul(part, relax.const(matrix.T.astype(dtype).copy()))

    out_real, out_imaginary = product(real, cosine), product(real, sine)
    if imaginary is not None:
        out_real = relax.op.subtract(out_real, product(imaginary, sine))
        out_imaginary = relax.op.add(out_imaginary, product(imaginary, cosine))
    back = [builder.emit(relax.op.permute_dims(builder.emit(part), order))
            for part in (out_real, out_imaginary)]  # fmt: skip
    return builder.normalize(relax.op.stack(back[:1] if to_real else back, axis=-1))


def stft(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return Fourier transforms of windows of a signal: (N, frames, bins, 2)."""
    x, window = inputs[0], optional(inputs, 2)
    step = int(constant(inputs[1], "frame_step").reshape(()))
    shape = static_shape(x)
    given = optional(inputs, 3)
    if given is not None:
        length = int(constant(given, "frame_length").reshape(()))
    elif window is not None:
        length = static_shape(window)[0]
    else:
        raise ValueError("STFT must have a window or a frame_length")
    frames = (shape[1] - length) // step + 1
    rows = length // 2 + 1 if int(attributes.get("onesided", 1)) else length
    cosine, sine = matrices(rows, length, length, False)
    dtype = dtype_of(x)
    at = np.arange(frames)[:, None] * step + np.arange(length)[None]
    framed = builder.emit(relax.op.take(x, relax.const(at.reshape(-1)), axis=1))
    tail = shape[2:] or [1]
    framed = builder.emit(relax.op.reshape(framed, (shape[0], frames, length, tail[0])))
    parts = [
        builder.emit(relax.op.squeeze(relax.op.strided_slice(
            framed, axes=[3], begin=[n], end=[n + 1]), axis=[3]))
        for n in range(tail[0])
    ]  # fmt: skip
    if window is not None:
        parts = [builder.emit(relax.op.multiply(part, window)) for part in parts]

    def product(part: relax.Expr, matrix: np.ndarray) -> relax.Expr:
        return relax.op.matmul(part, relax.const(matrix.T.astype(dtype).copy()))

    real, imaginary = product(parts[0], cosine), product(parts[0], sine)
    if len(parts) == 2:
        real = relax.op.subtract(real, product(parts[1], sine))
        imaginary = relax.op.add(imaginary, product(parts[1], cosine))
    return builder.normalize(relax.op.stack([builder.emit(real), builder.emit(imaginary)], axis=-1))


def matrices(rows: int, used: int, length: int, inverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines (rows, used) of the transform of ``length``.

    ``X[k] = sum_n x[n] * exp(-2 pi i k n / length)``; the inverse has the other sign, and is
    divided by the length.
    """
    turns = np.outer(np.arange(rows), np.arange(used)) % length
    angle = 2 * np.pi * turns / length
    factor = 1 / length if inverse else 1.0
    sign = 1.0 if inverse else -1.0
    return np.cos(angle) * factor, sign * np.sin(angle) * factor


def _parts(
    builder: relax.BlockBuilder, x: relax.Expr, axis: int, used: int
) -> tuple[relax.Expr, relax.Expr | None]:
    """Return real and imaginary part with the transformed axis last, cut to ``used`` values."""
    shape = static_shape(x)
    order = _last(len(shape) - 1, axis)
    found = []
    for part in range(shape[-1]):
        one = relax.op.strided_slice(x, axes=[len(shape) - 1], begin=[part], end=[part + 1])
        one = builder.emit(relax.op.squeeze(builder.emit(one), axis=[len(shape) - 1]))
        if used < shape[axis]:
            one = builder.emit(relax.op.strided_slice(one, axes=[axis], begin=[0], end=[used]))
        found.append(builder.emit(relax.op.permute_dims(one, order)))
    return found[0], found[1] if len(found) == 2 else None


def _last(rank: int, axis: int) -> list[int]:
    """Return the permutation that swaps an axis with the last one."""
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return order
