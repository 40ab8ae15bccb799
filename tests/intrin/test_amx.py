"""AMX kernels beside NumPy: products, convolutions without im2col, and what is refused.

They run on the CPU where it has AMX, else on the emulator, which also says what would be refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T  # noqa: N812

from tvmopt import host
from tvmopt.arch.cpu import CpuArch
from tvmopt.arch.features import required_cpu_flags
from tvmopt.arch.target import resolve_target
from tvmopt.emulate import amx
from tvmopt.errors import ArtifactError
from tvmopt.intrin import TILES, find_tile, largest_step, with_tile_configuration
from tvmopt.intrin.amx import configuration
from tvmopt.measure.jobs import pack
from tvmopt.measure.split import split_packing
from tvmopt.runtime import load

pytestmark = pytest.mark.skipif(
    not {"avx2", "fma"} <= host.cpu_flags(), reason="the kernels and the emulator are x86_64 code"
)

BY_NAME = {tile.name.removeprefix("tvmopt.amx_"): tile for tile in TILES}
U8S8, BF16 = BY_NAME["u8s8"], BY_NAME["bf16"]
FEATURES = ("+amx-int8", "+amx-bf16")
NATIVE = {"amx_tile", "amx_int8", "amx_bf16"} <= host.cpu_flags()


@pytest.fixture(scope="module")
def target():
    spec = dataclasses.replace(resolve_target("host", 2), mattr=FEATURES)
    return spec.to_tvm()


@contextlib.contextmanager
def on_amx():
    """Run what is inside on AMX; gives the emulator's counts, or None."""
    if NATIVE and host.request_amx(["amx_tile"]):
        yield None
    else:
        with amx.emulated() as counts:
            yield counts


def shaped(tile, **changes):
    return dataclasses.replace(tile, **changes)


# ---- kernels ----


def tensorized(func, tile, split, parallel=None):
    """Schedule block ``sums`` of ``func``; the rest is left alone.

    ``split`` takes the schedule and the loops, and gives the loops outside of the tile, those of
    the reduction, and those of the tile.
    """
    sch = s_tir.Schedule(func)
    block = sch.get_sblock("sums")
    copy = sch.cache_write(block, 0, "local")
    outer, reduction, inner = split(sch, sch.get_loops(block))
    sch.reorder(*outer, *reduction, *inner)
    sch.reverse_compute_at(copy, outer[-1])
    if parallel is not None:
        sch.parallel(outer[parallel])
    tiles = sch.blockize(inner[0])
    init = sch.decompose_reduction(tiles, reduction[0])
    sch.tensorize(init, tile.zero)
    sch.tensorize(tiles, tile.multiply)
    axes = 3 if tile.line_step else min(2, tile.block_rows)
    sch.tensorize(sch.get_loops(copy)[-axes], tile.store)
    return with_tile_configuration(sch.mod["main"])


def widened(value, tile, stored=""):
    return (T.reinterpret(tile.data, value) if stored else value).astype(tile.sums)


def dense(tile, rows, columns, depth, extra=(0, 0), offset=(0, 0), parallel=0):
    """``C = A W``; A is a part of a larger matrix, its rows ``tile.step`` apart."""
    height = (rows - 1) * tile.step + 1 + extra[0]
    data = te.placeholder((height, depth + extra[1]), tile.data, name="data")
    shape = (columns // 16, depth // tile.depth, 16, tile.depth)
    weight = te.placeholder(shape, tile.weight, name="weight")
    k = te.reduce_axis((0, depth), name="k")

    def value(i, j):
        left = data[i * tile.step + offset[0], k + offset[1]]
        right = weight[j // 16, k // tile.depth, j % 16, k % tile.depth]
        return te.sum(widened(left, tile) * widened(right, tile), axis=k)

    sums = te.compute((rows, columns), value, name="sums")

    def split(sch, loops):
        i, j, k = loops
        i0, i1 = sch.split(i, [None, tile.block_rows])
        j0, j1 = sch.split(j, [None, tile.block_columns])
        k0, k1 = sch.split(k, [None, tile.block_k])
        if tile.block_rows == 1:
            return [i0, i1, j0], [k0], [j1, k1]
        return [i0, j0], [k0], [i1, j1, k1]

    return tensorized(te.create_prim_func([data, weight, sums]), tile, split, parallel)


def convolution(tile, height, width, channels, filters, kernel, stride, blocks_first):
    """A padded image in NHWC; tiles are parts of lines, of two lines where there are two blocks."""
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


def build(func, target):
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tvm.tirx.build(module, target=target, pipeline="s_tir")


def call(lib, *arrays):
    """Run ``main``; the last array is the output's shape and type. Also the emulator's counts."""
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    with on_amx() as counts:
        lib["main"](*tensors)
        seen = counts.as_dict() if counts is not None else None
    return tensors[-1].numpy(), seen


# ---- numbers ----


def random(rng, dtype, shape, extremes=False):
    if dtype == "bfloat16":
        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    limits = np.iinfo(dtype)
    if extremes:
        return rng.choice(np.array([limits.min, limits.max], dtype), shape)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def packed(weight, tile):
    """``[..., K, N]`` as ``[..., N / 16, K / depth, 16, depth]``."""
    *lead, depth, columns = weight.shape
    split = weight.reshape(*lead, depth // tile.depth, tile.depth, columns // 16, 16)
    axes = range(len(lead))
    d = len(lead)
    return np.ascontiguousarray(split.transpose(*axes, d + 2, d, d + 3, d + 1))


def product(data, weight, tile):
    """What the tiles must give for ``data @ weight``, a step of ``tile.block_k`` after another."""
    if tile.sums == "int32":
        return (data.astype(np.int64) @ weight.astype(np.int64)).astype(np.int32)
    sums = np.zeros((data.shape[0], weight.shape[1]), np.float32)
    left, right = data.astype(np.float64), weight.astype(np.float64)
    for start in range(0, data.shape[1], tile.block_k):
        halves = [np.zeros_like(sums), np.zeros_like(sums)]
        for k in range(start, start + tile.block_k):
            half = halves[k % 2] + left[:, k, None] * right[None, k]
            halves[k % 2] = half.astype(np.float32)
        sums = sums + (halves[0] + halves[1])
    return sums


def check(got, data, weight, tile):
    np.testing.assert_equal(got.dtype, np.dtype(tile.sums))
    want = product(data, weight, tile)
    if tile.sums == "int32":
        np.testing.assert_array_equal(got, want)
        return
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())
    exact = data.astype(np.float64) @ weight.astype(np.float64)
    np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


def patches(image, kernel, stride, height, width):
    """Rows of ``(ky, kx, channel)`` that the outputs of a convolution are made of."""
    windows = [
        image[y * stride : y * stride + kernel, x * stride : x * stride + kernel].ravel()
        for y in range(height)
        for x in range(width)
    ]
    return np.stack(windows)


# ---- products ----

SHAPES = {
    "full": {},
    "one_column_block": {"column_blocks": 1},
    "one_row_block": {"row_blocks": 1},
    "one_tile": {"row_blocks": 1, "column_blocks": 1},
    "rows_14": {"rows": 14},
    "rows_7_k_48": {"rows": 7, "kbytes": 48},
    "k_40": {"kbytes": 40, "row_blocks": 1},
    "k_24": {"kbytes": 24, "column_blocks": 1},
    "k_4": {"kbytes": 4},
    "one_row": {"rows": 1, "row_blocks": 1},
    "one_row_twice": {"rows": 1},
    "k_4_one_row": {"kbytes": 4, "rows": 1, "row_blocks": 1, "column_blocks": 1},
    "one_row_stride_2": {"step": 2, "rows": 1, "row_blocks": 1},
    "stride_2": {"step": 2, "rows": 7},
    "stride_3": {"step": 3, "row_blocks": 1, "kbytes": 32},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["u8s8", "bf16"])
def test_dense(target, kind, shape):
    tile = shaped(BY_NAME[kind], **SHAPES[shape])
    rows, columns, depth = 2 * tile.block_rows, 3 * tile.block_columns, 3 * tile.block_k
    rng = np.random.default_rng(0)
    data = random(rng, tile.data, ((rows - 1) * tile.step + 1, depth))
    weight = random(rng, tile.weight, (depth, columns))
    lib = build(dense(tile, rows, columns, depth), target)
    got, counts = call(lib, data, packed(weight, tile), np.full((rows, columns), 7, tile.sums))
    check(got, data[:: tile.step], weight, tile)
    if counts is not None:
        blocks, used = 2 * 3, tile.row_blocks * tile.column_blocks
        loads = tile.row_blocks + tile.column_blocks
        assert counts == {
            **dict.fromkeys(counts, 0),
            "ldtilecfg": 2,
            "tilerelease": 2,
            "tilezero": blocks * used,
            "tilestored": blocks * used,
            "tileloadd": blocks * 3 * loads,
            tile.instruction: blocks * 3 * used,
        }


@pytest.mark.parametrize("kind", BY_NAME)
def test_a_part_of_a_wider_matrix(target, kind):
    """Rows are longer than what is multiplied, and begin at an odd place."""
    tile = shaped(BY_NAME[kind], rows=14, kbytes=32)
    rows, columns, depth = 2 * tile.block_rows, 2 * tile.block_columns, 2 * tile.block_k
    rng = np.random.default_rng(1)
    data = random(rng, tile.data, (rows + 5, depth + 13))
    weight = random(rng, tile.weight, (depth, columns))
    lib = build(dense(tile, rows, columns, depth, extra=(5, 13), offset=(3, 7)), target)
    got, _ = call(lib, data, packed(weight, tile), np.zeros((rows, columns), tile.sums))
    check(got, data[3 : 3 + rows, 7 : 7 + depth], weight, tile)


@pytest.mark.parametrize("kind", sorted(set(BY_NAME) - {"bf16"}))
def test_extremes(target, kind):
    tile = BY_NAME[kind]
    rng = np.random.default_rng(2)
    data = random(rng, tile.data, (32, 512), extremes=True)
    weight = random(rng, tile.weight, (512, 32), extremes=True)
    data[0], weight[:, 0] = np.iinfo(tile.data).max, np.iinfo(tile.weight).max
    data[1], weight[:, 1] = np.iinfo(tile.data).min, np.iinfo(tile.weight).min
    lib = build(dense(tile, 32, 32, 512, parallel=None), target)
    got, _ = call(lib, data, packed(weight, tile), np.zeros((32, 32), np.int32))
    check(got, data, weight, tile)


def test_denormal_bfloat16_is_taken_for_zero(target):
    data = np.full((32, 32), 2.0**-130).astype(ml_dtypes.bfloat16)
    weight = np.full((32, 32), 2.0**120).astype(ml_dtypes.bfloat16)
    assert (data.astype(np.float32) > 0).all()
    lib = build(dense(BF16, 32, 32, 32), target)
    got, _ = call(lib, data, packed(weight, BF16), np.ones((32, 32), np.float32))
    assert not got.any()


def test_a_changed_weight_changes_its_column_alone(target):
    tile = shaped(U8S8, rows=7, kbytes=24)
    rng = np.random.default_rng(3)
    data = random(rng, "uint8", (14, 48)) | 1
    weight = random(rng, "int8", (48, 64))
    lib = build(dense(tile, 14, 64, 48), target)
    for k, column in ((0, 0), (25, 37), (47, 63)):
        changed = packed(weight, tile)
        changed[column // 16, k // 4, column % 16, k % 4] ^= 1
        got, _ = call(lib, data, changed, np.zeros((14, 64), np.int32))
        wrong = got != product(data, weight, tile)
        assert wrong[:, column].all() and wrong.sum() == 14
        with pytest.raises(AssertionError):
            check(got, data, weight, tile)


# ---- convolutions without im2col ----


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
    got, _ = call(build(func, target), data, blocks, np.zeros((height, width, filters), tile.sums))
    rows_of = patches(data, kernel, stride, height, width)
    check(got.reshape(-1, filters), rows_of, weight.reshape(-1, filters), tile)


@pytest.mark.parametrize("kind", ["u8s8", "bf16"])
def test_convolution_of_width_7(target, kind):
    """The padded image as one row of pixels: 16-row tiles cross lines, into two useless columns."""
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
    got, _ = call(lib, flat, packed(weights, tile), np.zeros((rows, filters), tile.sums))
    whole = np.zeros((height * pitch, filters), got.dtype)  # the last columns are useless
    whole[: min(rows, len(whole))] = got[: len(whole)]
    useful = whole.reshape(height, pitch, filters)[:, :width].reshape(-1, filters)
    check(useful, patches(image, kernel, 1, height, width), weights.reshape(-1, filters), tile)


@pytest.mark.parametrize("line_step", [0, 2])
@pytest.mark.parametrize("kind", ["u8s8", "bf16"])
def test_rows_that_overlap(target, kind, line_step):
    """A 7 x 7 stem of stride 2: 8 pixels x 4 channels of a line are one row, 2 pixels apart."""
    itemsize = 4 // BY_NAME[kind].depth
    blocks = {"row_blocks": 2} if line_step else {"row_blocks": 1}
    tile = shaped(
        BY_NAME[kind], rows=8, kbytes=32 * itemsize, pitch=8, line_step=line_step, **blocks
    )
    height, width, kernel, filters = 4, 16, 7, 32
    lines, row = (height - 1) * 2 + kernel, (width - 1) * 8 + 32
    data = te.placeholder((lines, row), tile.data, name="data")
    shape = (kernel, filters // 16, 32 // tile.depth, 16, tile.depth)
    weight = te.placeholder(shape, tile.weight, name="weight")
    ky, k = te.reduce_axis((0, kernel), name="ky"), te.reduce_axis((0, 32), name="k")

    def value(y, x, f):
        left = data[y * 2 + ky, x * 8 + k]
        right = weight[ky, f // 16, k // tile.depth, f % 16, k % tile.depth]
        return te.sum(widened(left, tile) * widened(right, tile), axis=[ky, k])

    sums = te.compute((height, width, filters), value, name="sums")

    def split(sch, loops):
        y, x, f, ky, k = loops
        x0, x1 = sch.split(x, [None, tile.rows])
        f0, f1 = sch.split(f, [None, tile.block_columns])
        if line_step:
            y, y1 = sch.split(y, [None, 2])
            return [y, x0, f0], [ky], [y1, x1, f1, k]
        return [y, x0, f0], [ky], [x1, f1, k]

    func = tensorized(te.create_prim_func([data, weight, sums]), tile, split)
    rng = np.random.default_rng(6)
    image = random(rng, tile.data, (lines, row))
    weights = random(rng, tile.weight, (kernel, 32, filters))
    out = np.zeros((height, width, filters), tile.sums)
    got, _ = call(build(func, target), image, packed(weights, tile), out)
    rows_of = np.stack(
        [
            image[2 * y : 2 * y + kernel, 8 * x : 8 * x + 32].ravel()
            for y in range(height)
            for x in range(width)
        ]
    )
    check(got.reshape(-1, filters), rows_of, weights.reshape(-1, filters), tile)


# ---- bfloat16 inside a function ----


def copied_dense(stored, tile):
    """A product of a copy, made inside the function, of the data."""
    data = te.placeholder((32, 64), "bfloat16", name="data")
    weight = te.placeholder((2, 32, 16, 2), "bfloat16", name="weight")
    if stored == "uint16":
        copy = te.compute((32, 64), lambda i, k: T.reinterpret("uint16", data[i, k]), name="copy")
    else:
        copy = te.compute((32, 64), lambda i, k: data[i, k], name="copy")
    k = te.reduce_axis((0, 64), name="k")

    def value(i, j):
        left = widened(copy[i, k], tile, stored == "uint16")
        return te.sum(left * widened(weight[j // 16, k // 2, j % 16, k % 2], tile), axis=k)

    sums = te.compute((32, 32), value, name="sums")

    def split(sch, loops):
        i, j, k = loops
        i0, i1 = sch.split(i, [None, 32])
        j0, j1 = sch.split(j, [None, 32])
        k0, k1 = sch.split(k, [None, tile.block_k])
        return [i0, j0], [k0], [i1, j1, k1]

    return tensorized(te.create_prim_func([data, weight, sums]), tile, split)


def test_bfloat16_inside_a_function_lies_as_bits(target):
    rng = np.random.default_rng(7)
    data, weight = random(rng, "bfloat16", (32, 64)), random(rng, "bfloat16", (64, 32))
    lib = build(copied_dense("uint16", shaped(BF16, data_as="uint16")), target)
    got, _ = call(lib, data, packed(weight, BF16), np.zeros((32, 32), np.float32))
    check(got, data, weight, BF16)


def test_bfloat16_inside_a_function_is_refused():
    message = "kept as uint16, since TVM widens it to float32, but copy is not; give data_as"
    with pytest.raises(ValueError, match=message):
        copied_dense("bfloat16", BF16)


def test_weights_may_lie_as_bits(target):
    tile = shaped(BF16, data_as="uint16", weight_as="uint16")
    data = te.placeholder((32, 32), "uint16", name="data")
    weight = te.placeholder((2, 16, 16, 2), "uint16", name="weight")
    k = te.reduce_axis((0, 32), name="k")

    def value(i, j):
        left = widened(data[i, k], tile, True)
        return te.sum(left * widened(weight[j // 16, k // 2, j % 16, k % 2], tile, True), axis=k)

    sums = te.compute((32, 32), value, name="sums")

    def split(sch, loops):
        i, j, k = loops
        i0, i1 = sch.split(i, [None, 32])
        j0, j1 = sch.split(j, [None, 32])
        k0, k1 = sch.split(k, [None, 32])
        return [i0, j0], [k0], [i1, j1, k1]

    lib = build(tensorized(te.create_prim_func([data, weight, sums]), tile, split), target)
    rng = np.random.default_rng(8)
    left, right = random(rng, "bfloat16", (32, 32)), random(rng, "bfloat16", (32, 32))
    bits = [left.view(np.uint16), packed(right, tile).view(np.uint16)]
    got, _ = call(lib, *bits, np.zeros((32, 32), np.float32))
    check(got, left, right, tile)


# ---- together with what else is done to a scheduled function ----


def packing_dense(tile, parallel):
    """A product whose weight, (K, N), is packed by a block that runs at build time."""
    rows, columns, depth = 2 * tile.block_rows, 64, 2 * tile.block_k
    data = te.placeholder((rows, depth), tile.data, name="data")
    weight = te.placeholder((depth, columns), tile.weight, name="weight")
    k = te.reduce_axis((0, depth), name="k")

    def value(i, j):
        return te.sum(widened(data[i, k], tile) * widened(weight[k, j], tile), axis=k)

    sums = te.compute((rows, columns), value, name="sums")
    func = te.create_prim_func([data, weight, sums]).with_attr("layout_free_buffers", [1])
    sch = s_tir.Schedule(func)
    block = sch.get_sblock("sums")
    packs = sch.cache_read(block, 1, "global")
    d = tile.depth
    sch.transform_layout(block, ("read", 1), lambda k, j: (j // 16, k // d, j % 16, k % d))
    sch.annotate(packs, "meta_schedule.layout_rewrite_preproc", True)

    def split(sch, loops):
        i, j, k = loops
        i0, i1 = sch.split(i, [None, tile.block_rows])
        j0, j1 = sch.split(j, [None, tile.block_columns])
        k0, k1 = sch.split(k, [None, tile.block_k])
        return [i0, j0], [k0], [i1, j1, k1]

    return tensorized(sch.mod["main"], tile, split, parallel)


@pytest.mark.parametrize("parallel", [0, None])
@pytest.mark.parametrize("kind", ["u8s8", "bf16"])
def test_packing_at_build_time(target, kind, parallel):
    tile = shaped(BY_NAME[kind], rows=14)
    parts = split_packing(tvm.ir.load_json(tvm.ir.save_json(packing_dense(tile, parallel))))
    assert parts.packed == (1,)
    functions = {"main": parts.compute, "pack": parts.packer}
    named = {name: f.with_attr("global_symbol", name) for name, f in functions.items()}
    lib = tvm.tirx.build(tvm.IRModule(named), target=target, pipeline="s_tir")
    rng = np.random.default_rng(10)
    rows, columns, depth = 2 * tile.block_rows, 64, 2 * tile.block_k
    data, weight = random(rng, tile.data, (rows, depth)), random(rng, tile.weight, (depth, columns))
    arrays = [data, weight, np.zeros((rows, columns), tile.sums)]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    pack(lib["pack"], tensors, list(parts.packed), parts.outputs)
    np.testing.assert_array_equal(tensors[1].numpy(), packed(weight, tile))
    with on_amx():
        lib["main"](*tensors)
    check(tensors[2].numpy(), data, weight, tile)


def test_kernels_of_several_shapes_in_one_library(target):
    tiles = [U8S8, shaped(U8S8, rows=14), shaped(U8S8, row_blocks=1), BF16, U8S8]
    funcs = {
        f"kernel{n}": dense(tile, 2 * tile.block_rows, 32, 2 * tile.block_k).with_attr(
            "global_symbol", f"kernel{n}"
        )
        for n, tile in enumerate(tiles)
    }
    lib = tvm.tirx.build(tvm.IRModule(funcs), target=target, pipeline="s_tir")
    rng = np.random.default_rng(11)
    for name, tile in zip(funcs, tiles, strict=True):
        data = random(rng, tile.data, (2 * tile.block_rows, 2 * tile.block_k))
        weight = random(rng, tile.weight, (2 * tile.block_k, 32))
        out = tvm.runtime.tensor(np.zeros((len(data), 32), tile.sums))
        with on_amx():
            lib[name](tvm.runtime.tensor(data), tvm.runtime.tensor(packed(weight, tile)), out)
        check(out.numpy(), data, weight, tile)


# ---- the library ----


@pytest.fixture(scope="module")
def exported(target, tmp_path_factory):
    """A kernel as a shared library."""
    path = tmp_path_factory.mktemp("amx") / "kernel.so"
    build(dense(shaped(U8S8, rows=14, kbytes=24), 28, 64, 48), target).export_library(str(path))
    return path


def test_disassembly(exported):
    done = subprocess.run(["objdump", "-d", str(exported)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = re.findall(r"\t((?:ld|st)?tile\w+|tdp\w+)\s*(\S*)", done.stdout)
    products = [registers for name, registers in seen if name == "tdpbusd"]
    assert len(products) >= 4 and {name for name, _ in seen} == {
        "ldtilecfg", "tilezero", "tileloadd", "tdpbusd", "tilestored", "tilerelease"
    }  # fmt: skip
    # No register is another one than configured: tiles are not all of one shape.
    assert set(products) == {
        "%tmm6,%tmm4,%tmm0", "%tmm7,%tmm4,%tmm1", "%tmm6,%tmm5,%tmm2", "%tmm7,%tmm5,%tmm3"
    }  # fmt: skip


def test_sums_need_no_memory_of_their_own(target):
    text = build(dense(U8S8, 64, 64, 128), target).inspect_source("asm")
    assert "TVMBackendAllocWorkspace" not in text
    assert [int(n) for n in re.findall(r"subq\s+\$(\d+), %rsp", text) if int(n) > 1024] == []


def test_every_byte_of_the_configuration_arrives(exported):
    assert configuration(14, 24) in exported.read_bytes()


def test_configuration_is_what_intel_says():
    data = configuration(7, 40)
    assert len(data) == 64 and data[0] == 1 and not any(data[1:16])
    assert list(data[16:32:2]) == [64, 64, 64, 64, 40, 40, 64, 64] and not any(data[17:32:2])
    assert list(data[48:56]) == [7] * 6 + [10] * 2
    assert not any(data[32:48]) and not any(data[56:])


_CHILD = """
import sys, numpy as np, tvm
lib = tvm.runtime.load_module(sys.argv[1])
shapes = [((28, 48), "uint8"), ((4, 12, 16, 4), "int8"), ((28, 64), "int32")]
tensors = [tvm.runtime.tensor(np.zeros(*s)) for s in shapes]
print("loaded", flush=True)
lib["main"](*tensors)
print("ran")
"""


def test_without_permission_and_emulator_it_dies(exported):
    command = [sys.executable, "-c", _CHILD, str(exported)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-4, "loaded\n")  # SIGILL


@pytest.mark.skipif(NATIVE, reason="this CPU has AMX")
def test_the_runtime_refuses_it_first(exported, tmp_path, monkeypatch, write_kernel_bundle):
    (tmp_path / "model.so").write_bytes(exported.read_bytes())
    flags = required_cpu_flags("x86_64", ("amx-tile", "amx-int8", "avx2"))
    target = resolve_target("host", 1).to_dict()
    target |= {"mattr": list(FEATURES), "cpu_flags": list(flags)}
    write_kernel_bundle(tmp_path, target, ("tdpbusd",))
    monkeypatch.setattr(tvm.runtime, "load_module", lambda path: pytest.fail("it was opened"))
    with pytest.raises(ArtifactError, match=r"this CPU \(.*\) lacks amx_int8, amx_tile; build it"):
        load(tmp_path)


# ---- configuring ----


def _product_of(data, weight, k):
    def value(i, j):
        left, right = data[i, k], weight[j // 16, k // 4, j % 16, k % 4]
        return te.sum(left.astype("int32") * right.astype("int32"), axis=k)

    return value


def two_stages(first, second, parallel=(True, True)):
    """Two products in a row, each with an intrinsic of its own."""
    k = te.reduce_axis((0, 64), name="k")
    inputs, outputs = [], []
    for n in range(2):
        data = te.placeholder((32, 64), "uint8", name=f"data{n}")
        weight = te.placeholder((2, 16, 16, 4), "int8", name=f"weight{n}")

        inputs += [data, weight]
        outputs.append(te.compute((32, 32), _product_of(data, weight, k), name=f"sums{n}"))
    sch = s_tir.Schedule(te.create_prim_func([*inputs, *outputs]))
    for n, tile in enumerate((first, second)):
        block = sch.get_sblock(f"sums{n}")
        copy = sch.cache_write(block, 0, "local")
        i, j, k_ = sch.get_loops(block)
        i0, i1 = sch.split(i, [None, tile.block_rows])
        j0, j1 = sch.split(j, [None, tile.block_columns])
        k0, k1 = sch.split(k_, [None, tile.block_k])
        sch.reorder(i0, j0, k0, i1, j1, k1)
        sch.reverse_compute_at(copy, j0)
        if parallel[n]:
            sch.parallel(i0)
        tiles = sch.blockize(i1)
        sch.tensorize(sch.decompose_reduction(tiles, k0), tile.zero)
        sch.tensorize(tiles, tile.multiply)
        sch.tensorize(sch.get_loops(copy)[-2], tile.store)
    return sch.mod["main"]


@pytest.mark.parametrize("parallel", [(True, True), (True, False), (False, False)])
def test_each_stage_sets_tiles_up(target, parallel):
    halves = shaped(U8S8, row_blocks=1)  # other blocks of the same tiles
    func = with_tile_configuration(two_stages(U8S8, halves, parallel))
    rng = np.random.default_rng(9)
    arrays, wanted = [], []
    for _ in range(2):
        data, weight = random(rng, "uint8", (32, 64)), random(rng, "int8", (64, 32))
        arrays += [data, packed(weight, U8S8)]
        wanted.append(product(data, weight, U8S8))
    tensors = [tvm.runtime.tensor(a) for a in [*arrays, *(np.zeros_like(w) for w in wanted)]]
    with on_amx() as counts:
        build(func, target)["main"](*tensors)
        if counts is not None:
            times = 1 + (2 if parallel[1] else 1)
            assert counts["ldtilecfg"] == counts["tilerelease"] == times
    for tensor, want in zip(tensors[4:], wanted, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), want)


def test_tiles_of_several_shapes_are_refused():
    func = two_stages(U8S8, shaped(U8S8, kbytes=32))
    got = "tiles of one shape, .* but got 16 rows and 32 bytes, 16 rows and 64 bytes; choose"
    with pytest.raises(ValueError, match=got):
        with_tile_configuration(func)


def test_a_function_without_tiles_is_left_alone():
    data = te.placeholder((4,), "int8", name="data")
    func = te.create_prim_func([data, te.compute((4,), lambda i: data[i] + data[i])])
    assert with_tile_configuration(func).same_as(func)


def test_tiles_in_and_beside_a_parallel_loop_are_refused():
    @T.prim_func(s_tir=True)
    def func(a: T.Buffer((4,), "int8")):
        with T.sblock("root"):
            for _ in range(2):
                T.evaluate(T.call_extern("void", "tvmopt_amx_r16_k64_tdpbusd_2x2_zero"))
                for _ in T.parallel(2):
                    T.evaluate(T.call_extern("void", "tvmopt_amx_r16_k64_tdpbusd_2x2_zero"))

    with pytest.raises(ValueError, match="but 1 of 2 uses are in parallel loops"):
        with_tile_configuration(func)


# ---- choosing ----


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_find_tile(tile):
    arch = CpuArch("sapphirerapids", "x86_64", 1, 512, 32)
    assert find_tile(arch, tile.data, tile.weight) is tile
    without = dataclasses.replace(arch, mattr=tuple(f"-{f}" for f in tile.features))
    assert find_tile(without, tile.data, tile.weight) is None
    assert find_tile(CpuArch("znver4", "x86_64", 1, 512, 32), tile.data, tile.weight) is None
    assert find_tile(arch, "float32", "float32") is None


def test_find_tile_knows_the_family():
    arch = CpuArch("cortex-a76", "aarch64", 1, 128, 32, mtriple="aarch64-linux-gnu")
    assert find_tile(arch, "uint8", "int8") is None


def test_names_are_stable_and_tell_shapes_apart():
    tile = shaped(U8S8, rows=9)
    assert tile.multiply == tile.multiply  # registered once
    changes = [{"kbytes": 4}, {"step": 2}, {"line_step": 1}, {"pitch": 3}, {"weight_axes": 1}]
    others = [tile, U8S8, BF16, *(shaped(tile, **change) for change in changes)]
    others += [shaped(BF16, data_as="uint16"), shaped(BF16, weight_as="uint16")]
    assert len({other.multiply for other in others}) == len(others)
    assert s_tir.TensorIntrin.get(tile.zero) is not None


@pytest.mark.parametrize(
    ("nbytes", "step"), [(64, 64), (24, 24), (40, 40), (80, 40), (144, 48), (512, 64), (3, None)]
)
def test_largest_step(nbytes, step):
    assert largest_step(nbytes) == step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 0}, "rows of a tile intrinsic must be 1 to 16, but got 0"),
        ({"rows": 17}, "rows of a tile intrinsic must be 1 to 16, but got 17"),
        ({"row_blocks": 3}, "row_blocks of a tile intrinsic must be 1 or 2, but got 3"),
        ({"column_blocks": 0}, "column_blocks of a tile intrinsic must be 1 or 2, but got 0"),
        ({"kbytes": 6}, "kbytes of a tile intrinsic must be a multiple of 4 up to 64, but got 6"),
        ({"kbytes": 68}, "a multiple of 4 up to 64, but got 68"),
        ({"step": 0}, "step must be at least 1, .* but got .*step=0"),
        ({"line_step": -1}, "line_step, pitch and weight_axes 0, but got .*line_step=-1"),
        ({"line_step": 1, "row_blocks": 1}, "2 row blocks of .* got self.row_blocks=1 and .*=16"),
        ({"line_step": 1, "rows": 1}, "at least 2 rows, but got self.row_blocks=2 and .*rows=1"),
        ({"pitch": 8, "step": 2}, "pitch must come without step, but got self.step=2"),
        ({"data_as": "uint16"}, "only bfloat16 can be kept as uint16, but got uint8"),
    ],
)
def test_wrong_shapes(changes, message):
    with pytest.raises(ValueError, match=message):
        shaped(U8S8, **changes)


def test_properties():
    tile = shaped(BF16, rows=14, kbytes=48, column_blocks=1)
    assert (tile.block_rows, tile.block_columns, tile.block_k) == (28, 16, 24)
    assert tile.function == "tvmopt_amx_r14_k48_tdpbf16ps_2x1"
