"""Direct convolution (no im2col) with AMX tiles, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te

from tests.kernels.cpu.intrinsics.amx.kernels import (
    BY_NAME,
    build,
    call,
    check,
    on_x86_64,
    packed,
    random,
    shaped,
    tensorized,
    widened,
)
from tvmopt.kernels.cpu.intrinsics import largest_step

pytestmark = on_x86_64


def convolution(tile, height, width, channels, filters, kernel, stride, blocks_first):
    """Convolve a padded NHWC image; a tile is part of one image row, two row blocks of two rows."""
    lines, pixels = (height - 1) * stride + kernel, (width - 1) * stride + kernel
    data = te.placeholder((lines, pixels, channels), tile.data, name="data")
    steps = channels // tile.depth
    if blocks_first:
        shape = (filters // 16, kernel, kernel, steps, 16, tile.depth)
    else:
        shape = (kernel, kernel, filters // 16, steps, 16, tile.depth)
    weight = te.placeholder(shape, tile.weight, name="weight")
    ky = te.reduce_axis((0, kernel), name="ky")
    kx = te.reduce_axis((0, kernel), name="kx")
    k = te.reduce_axis((0, channels), name="k")

    def value(y, x, f):
        left = data[y * stride + ky, x * stride + kx, k]
        place = (f // 16, ky, kx) if blocks_first else (ky, kx, f // 16)
        right = weight[(*place, k // tile.depth, f % 16, k % tile.depth)]
        return te.sum(widened(left, tile) * widened(right, tile), axis=[ky, kx, k])

    sums = te.compute((height, width, filters), value, name="sums")

    def split(sch, loops):
        y, x, f, ky, kx, k = loops
        y0, y1 = sch.split(y, [None, tile.row_blocks])
        x0, x1 = sch.split(x, [None, tile.rows])
        f0, f1 = sch.split(f, [None, tile.block_columns])
        k0, k1 = sch.split(k, [None, tile.block_k])
        return [y0, x0, f0], [ky, kx, k0], [y1, x1, f1, k1]

    return tensorized(te.create_prim_func([data, weight, sums]), tile, split, parallel=0)


def patches(image, kernel, stride, height, width):
    """Return the im2col matrix: one row ``(ky, kx, channel)`` per output pixel."""
    windows = [
        image[y * stride : y * stride + kernel, x * stride : x * stride + kernel].ravel()
        for y in range(height)
        for x in range(width)
    ]
    return np.stack(windows)


@pytest.mark.sample(2)
@pytest.mark.parametrize("blocks_first", [True, False])
@pytest.mark.parametrize(
    ("kind", "rows", "size", "channels", "stride"),
    [
        ("u8s8", 14, (4, 14), 64, 1),
        ("u8s8", 14, (2, 28), 144, 1),
        ("u8s8", 7, (4, 7), 24, 2),
        ("s8s8", 16, (2, 16), 40, 1),
        ("bf16", 14, (4, 14), 32, 1),
        ("bf16", 7, (2, 14), 40, 2),
    ],
)
def test_convolution(target, kind, rows, size, channels, stride, blocks_first):
    base = BY_NAME[kind]
    itemsize = 4 // base.depth
    tile = shaped(
        base,
        rows=rows,
        kbytes=largest_step(channels * itemsize),
        step=stride,
        line_step=stride,
        weight_axes=2 if blocks_first else 0,
    )
    (height, width), kernel, filters = size, 3, 64
    lines, pixels = (height - 1) * stride + kernel, (width - 1) * stride + kernel
    rng = np.random.default_rng(4)
    data = random(rng, tile.data, (lines, pixels, channels))
    weight = random(rng, tile.weight, (kernel, kernel, channels, filters))
    blocks = packed(weight, tile)
    if blocks_first:
        blocks = np.ascontiguousarray(blocks.transpose(2, 0, 1, 3, 4, 5))
    func = convolution(tile, height, width, channels, filters, kernel, stride, blocks_first)
    got, _ = call(
        build(func, target), data, blocks, np.zeros((height, width, filters), tile.accumulator)
    )
    rows_of = patches(data, kernel, stride, height, width)
    check(got.reshape(-1, filters), rows_of, weight.reshape(-1, filters), tile)


@pytest.mark.parametrize("kind", ["u8s8", "bf16"])
def test_convolution_of_width_7(target, kind):
    """The padded image is one row of pixels: 16-row tiles cross rows, with two unused columns."""
    tile = shaped(BY_NAME[kind], kbytes=64, row_blocks=2)
    height = width = 7
    kernel, filters, channels = 3, 32, 2 * tile.block_k
    pitch = width + kernel - 1
    rows = -(-(height * pitch - (kernel - 1)) // tile.block_rows) * tile.block_rows
    pixels = rows + (kernel - 1) * (pitch + 1)
    data = te.placeholder((pixels, channels), tile.data, name="data")
    shape = (kernel, kernel, filters // 16, channels // tile.depth, 16, tile.depth)
    weight = te.placeholder(shape, tile.weight, name="weight")
    ky, kx = (te.reduce_axis((0, kernel), name=name) for name in ("ky", "kx"))
    k = te.reduce_axis((0, channels), name="k")

    def value(p, f):
        left = data[p + ky * pitch + kx, k]
        right = weight[ky, kx, f // 16, k // tile.depth, f % 16, k % tile.depth]
        return te.sum(widened(left, tile) * widened(right, tile), axis=[ky, kx, k])

    sums = te.compute((rows, filters), value, name="sums")

    def split(sch, loops):
        p, f, ky, kx, k = loops
        p0, p1 = sch.split(p, [None, tile.block_rows])
        f0, f1 = sch.split(f, [None, tile.block_columns])
        k0, k1 = sch.split(k, [None, tile.block_k])
        return [p0, f0], [ky, kx, k0], [p1, f1, k1]

    func = tensorized(te.create_prim_func([data, weight, sums]), tile, split)
    rng = np.random.default_rng(5)
    image = random(rng, tile.data, (height + kernel - 1, pitch, channels))
    weights = random(rng, tile.weight, (kernel, kernel, channels, filters))
    flat = np.zeros((pixels, channels), image.dtype)
    flat[: image.shape[0] * pitch] = image.reshape(-1, channels)[:pixels]
    lib = build(func, target)
    got, _ = call(lib, flat, packed(weights, tile), np.zeros((rows, filters), tile.accumulator))
    whole = np.zeros((height * pitch, filters), got.dtype)  # the last columns are useless
    whole[: min(rows, len(whole))] = got[: len(whole)]
    useful = whole.reshape(height, pitch, filters)[:, :width].reshape(-1, filters)
    check(useful, patches(image, kernel, 1, height, width), weights.reshape(-1, filters), tile)


@pytest.mark.sample(2)
@pytest.mark.parametrize("line_step", [0, 2])
@pytest.mark.parametrize("kind", ["u8s8", "bf16"])
def test_a_step_of_all_columns_of_a_kernel(target, kind, line_step):
    """A 7 x 7 stem of stride 2: a K step is 7 pixels x 4 channels, and rows are 2 pixels apart."""
    itemsize = 4 // BY_NAME[kind].depth
    kernel, channels, height, width, filters = 7, 4, 4, 16, 32
    tile = shaped(
        BY_NAME[kind],
        rows=8,
        kbytes=kernel * channels * itemsize,
        taps=kernel,
        step=2,
        line_step=line_step,
        row_blocks=2 if line_step else 1,
        weight_axes=2,
    )
    lines, row = ((size - 1) * 2 + kernel for size in (height, width))
    data = te.placeholder((lines, row, channels), tile.data, name="data")
    shape = (filters // 16, kernel, kernel, channels // tile.depth, 16, tile.depth)
    weight = te.placeholder(shape, tile.weight, name="weight")
    ky, kx = (te.reduce_axis((0, kernel), name=name) for name in ("ky", "kx"))
    k = te.reduce_axis((0, channels), name="k")

    def value(y, x, f):
        left = data[y * 2 + ky, x * 2 + kx, k]
        right = weight[f // 16, ky, kx, k // tile.depth, f % 16, k % tile.depth]
        return te.sum(widened(left, tile) * widened(right, tile), axis=[ky, kx, k])

    sums = te.compute((height, width, filters), value, name="sums")

    def split(sch, loops):
        y, x, f, ky, kx, k = loops
        x0, x1 = sch.split(x, [None, tile.rows])
        f0, f1 = sch.split(f, [None, tile.block_columns])
        if line_step:
            y, y1 = sch.split(y, [None, 2])
            return [y, x0, f0], [ky], [y1, x1, f1, kx, k]
        return [y, x0, f0], [ky], [x1, f1, kx, k]

    func = tensorized(te.create_prim_func([data, weight, sums]), tile, split)
    rng = np.random.default_rng(6)
    image = random(rng, tile.data, (lines, row, channels))
    weights = random(rng, tile.weight, (kernel, kernel * channels, filters))
    out = np.zeros((height, width, filters), tile.accumulator)
    panels = packed(weights.reshape(kernel, kernel, channels, filters), tile)
    got, _ = call(build(func, target), image, np.ascontiguousarray(np.moveaxis(panels, 2, 0)), out)
    rows_of = patches(image, kernel, 2, height, width)
    check(got.reshape(-1, filters), rows_of, weights.reshape(-1, filters), tile)
