"""AMX kernels with weight prepacking, and libraries with several AMX kernels."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tests.kernels.cpu.intrinsics.amx.kernels import (
    BF16,
    BY_NAME,
    U8S8,
    check,
    dense,
    on_amx,
    on_x86_64,
    packed,
    random,
    shaped,
    tensorized,
    widened,
)
from tvmopt.measure.check import pack
from tvmopt.measure.split import split_packing

pytestmark = on_x86_64


def packing_dense(tile, parallel):
    """A matmul whose weight, (K, N), is packed by a block at build time."""
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


@pytest.mark.sample(2)
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
    arrays = [data, weight, np.zeros((rows, columns), tile.accumulator)]
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
        out = tvm.runtime.tensor(np.zeros((len(data), 32), tile.accumulator))
        with on_amx():
            lib[name](tvm.runtime.tensor(data), tvm.runtime.tensor(packed(weight, tile)), out)
        check(out.numpy(), data, weight, tile)
