"""AMX kernels with bfloat16 buffers and weights stored as 16-bit integers."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te
from tvm.script import tirx as T  # noqa: N812

from tests.kernels.cpu.intrinsics.amx.kernels import (
    BF16,
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

pytestmark = on_x86_64


def copied_dense(stored, tile):
    """A matmul of a copy of the data, made inside the function."""
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
