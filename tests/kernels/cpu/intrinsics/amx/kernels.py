"""AMX kernels for the tests: schedule, call, and NumPy reference.

They run natively on a CPU with AMX, otherwise on the emulator, which also reports illegal use.
"""

from __future__ import annotations

import contextlib
import dataclasses

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T  # noqa: N812

from tests.emulator import amx
from tvmopt import host
from tvmopt.kernels.cpu.intrinsics import TILES, with_tile_configuration

on_x86_64 = pytest.mark.skipif(
    not {"avx2", "fma"} <= host.cpu_flags(), reason="the kernels and the emulator are x86_64 code"
)

BY_NAME = {tile.name.removeprefix("tvmopt.amx_"): tile for tile in TILES}
U8S8, BF16 = BY_NAME["u8s8"], BY_NAME["bf16"]
FEATURES = ("+amx-int8", "+amx-bf16")
NO_FEATURES = ("-amx-int8", "-amx-bf16", "-amx-tile")
NATIVE = {"amx_tile", "amx_int8", "amx_bf16"} <= host.cpu_flags()


@contextlib.contextmanager
def on_amx():
    """Run the context on AMX, native or emulated; yield the counts of the emulator, or None."""
    if NATIVE and host.request_amx(["amx_tile"]):
        yield None
    else:
        with amx.emulated() as counts:
            yield counts


def shaped(tile, **changes):
    return dataclasses.replace(tile, **changes)


# ---- kernels ----


def tensorized(func, tile, split, parallel=None):
    """Schedule block ``sums`` of ``func``; other blocks stay.

    ``split`` takes the schedule and the loops. It returns the loops outside of the tile, the loops
    of the reduction, and the loops of the tile.
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
    return (T.reinterpret(tile.data, value) if stored else value).astype(tile.accumulator)


def dense(tile, rows, columns, depth, extra=(0, 0), offset=(0, 0), parallel=0):
    """Compute ``C = A W``; A is part of a larger matrix with a row stride of ``tile.step``."""
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


def build(func, target):
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tvm.tirx.build(module, target=target, pipeline="s_tir")


def call(lib, *arrays):
    """Run ``main``; the last array has shape and dtype of the output. Return it and the counts."""
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    with on_amx() as counts:
        lib["main"](*tensors)
        seen = counts.as_dict() if counts is not None else None
    return tensors[-1].numpy(), seen


# ---- operands and references ----


def random(rng, dtype, shape, extremes=False):
    if dtype == "bfloat16":
        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    limits = np.iinfo(dtype)
    if extremes:
        return rng.choice(np.array([limits.min, limits.max], dtype), shape)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def packed(weight, tile):
    """Pack ``[..., K, N]`` to ``[..., N / 16, K / depth, 16, depth]``."""
    *lead, depth, columns = weight.shape
    split = weight.reshape(*lead, depth // tile.depth, tile.depth, columns // 16, 16)
    axes = range(len(lead))
    d = len(lead)
    return np.ascontiguousarray(split.transpose(*axes, d + 2, d, d + 3, d + 1))


def product(data, weight, tile):
    """What the tiles must give for ``data @ weight``, a step of ``tile.block_k`` after another."""
    if tile.accumulator == "int32":
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
    np.testing.assert_equal(got.dtype, np.dtype(tile.accumulator))
    want = product(data, weight, tile)
    if tile.accumulator == "int32":
        np.testing.assert_array_equal(got, want)
        return
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())
    exact = data.astype(np.float64) @ weight.astype(np.float64)
    np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())
