"""Tests of the placement of ``ldtilecfg`` and ``tilerelease``, and of rejected functions."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T  # noqa: N812

from tests.kernels.cpu.intrinsics.amx.kernels import (
    U8S8,
    build,
    on_amx,
    on_x86_64,
    packed,
    product,
    random,
    shaped,
)
from tvmopt.kernels.cpu.intrinsics import with_tile_configuration

pytestmark = on_x86_64


# More blocks of 16 rows than any test machine has threads.
_ROWS = 32 * 256


def _product_of(data, weight, k):
    def value(i, j):
        left, right = data[i, k], weight[j // 16, k // 4, j % 16, k % 4]
        return te.sum(left.astype("int32") * right.astype("int32"), axis=k)

    return value


def two_stages(first, second, parallel=(True, True)):
    """Two matmuls in sequence, each with its own intrinsic."""
    k = te.reduce_axis((0, 64), name="k")
    inputs, outputs = [], []
    for n in range(2):
        data = te.placeholder((_ROWS, 64), "uint8", name=f"data{n}")
        weight = te.placeholder((2, 16, 16, 4), "int8", name=f"weight{n}")

        inputs += [data, weight]
        outputs.append(te.compute((_ROWS, 32), _product_of(data, weight, k), name=f"sums{n}"))
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


@pytest.mark.sample(2)
@pytest.mark.parametrize("parallel", [(True, True), (True, False), (False, False)])
def test_each_stage_sets_tiles_up_once(target, parallel):
    halves = shaped(U8S8, row_blocks=1)  # other blocks with the same tiles
    func = with_tile_configuration(two_stages(U8S8, halves, parallel))
    rng = np.random.default_rng(9)
    arrays, wanted = [], []
    for _ in range(2):
        data, weight = random(rng, "uint8", (_ROWS, 64)), random(rng, "int8", (64, 32))
        arrays += [data, packed(weight, U8S8)]
        wanted.append(product(data, weight, U8S8))
    tensors = [tvm.runtime.tensor(a) for a in [*arrays, *(np.zeros_like(w) for w in wanted)]]
    with on_amx() as counts:
        build(func, target)["main"](*tensors)
        if counts is not None:
            stages, threads = 2, os.cpu_count()
            assert counts["ldtilecfg"] == counts["tilerelease"]
            assert stages <= counts["ldtilecfg"] <= stages * threads  # not of each iteration
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
