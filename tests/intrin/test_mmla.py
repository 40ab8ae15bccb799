"""The contract of matrix intrinsics: right numbers, by the instruction, for any tiles."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T  # noqa: N812

from tests import emulator
from tvmopt.arch.cpu import CpuArch
from tvmopt.errors import ArtifactError
from tvmopt.intrin import MMLA

ROWS, COLUMNS, DEPTH = 6, 10, 40
each = pytest.mark.parametrize("mma", [pytest.param(mma, id=mma.name) for mma in MMLA])
emulated = pytest.mark.skipif(
    isinstance(emulator.find_tools("aarch64"), str), reason=str(emulator.find_tools("aarch64"))
)


def built(mma) -> tvm.runtime.Module:
    """``result = sums + data[1:, 3:] . weight`` in 2 x 2 tiles, no loop left over tiles.

    The weight lies as ``[columns / 2][depth / 8][2][8]``.
    """

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((ROWS + 1, DEPTH + 5), mma.data),  # noqa: N803
        B: T.Buffer((COLUMNS // 2, DEPTH // 8, 2, 8), mma.weight),  # noqa: N803
        S: T.Buffer((ROWS, COLUMNS), "int32"),  # noqa: N803
        C: T.Buffer((ROWS, COLUMNS), "int32"),  # noqa: N803
    ) -> None:
        T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
        tile = T.sblock_alloc_buffer((ROWS // 2, COLUMNS // 2, 2, 2), "int32", scope="local")
        for i0, j0, i1, j1 in T.grid(ROWS // 2, COLUMNS // 2, 2, 2):
            with T.sblock("load"):
                vi0, vj0, vi1, vj1 = T.axis.remap("SSSS", [i0, j0, i1, j1])
                tile[vi0, vj0, vi1, vj1] = S[vi0 * 2 + vi1, vj0 * 2 + vj1]
        for i0, j0, k0, i1, j1, k1 in T.grid(ROWS // 2, COLUMNS // 2, DEPTH // 8, 2, 2, 8):
            with T.sblock("product"):
                vi0, vj0, vi1, vj1 = T.axis.remap("SSSS", [i0, j0, i1, j1])
                vk0, vk1 = T.axis.remap("RR", [k0, k1])
                tile[vi0, vj0, vi1, vj1] = tile[vi0, vj0, vi1, vj1] + T.cast(
                    A[vi0 * 2 + vi1 + 1, vk0 * 8 + vk1 + 3], "int32"
                ) * T.cast(B[vj0, vk0, vj1, vk1], "int32")
        for i0, j0, i1, j1 in T.grid(ROWS // 2, COLUMNS // 2, 2, 2):
            with T.sblock("store"):
                vi0, vj0, vi1, vj1 = T.axis.remap("SSSS", [i0, j0, i1, j1])
                C[vi0 * 2 + vi1, vj0 * 2 + vj1] = tile[vi0, vj0, vi1, vj1]

    sch = s_tir.Schedule(main)
    *tiles, i1, _, _ = sch.get_loops(sch.get_sblock("product"))
    sch.tensorize(i1, mma.register())
    for loop in tiles:
        sch.unroll(loop)
    mattr = tuple(f"+{feature}" for feature in mma.features)  # of the smallest CPU that has it
    arch = CpuArch("generic", mma.isa, 1, 128, 32, mattr=mattr, mtriple="aarch64-linux-gnu")
    return tvm.tirx.build(tvm.IRModule({"main": sch.mod["main"]}), target=arch.to_tvm())


def operands(mma):
    """From the whole range, both ends often, and the sums so large that some wrap around."""
    rng = np.random.default_rng(0)
    made = []
    shapes = [(ROWS + 1, DEPTH + 5), (COLUMNS // 2, DEPTH // 8, 2, 8), (ROWS, COLUMNS)]
    for shape, dtype in zip(shapes, (mma.data, mma.weight, mma.sums), strict=True):
        limits = np.iinfo(dtype)
        numbers = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        ends = rng.random(shape)
        numbers[ends < 0.2], numbers[ends > 0.8] = limits.min, limits.max
        made.append(numbers)
    return made


def expected(data, weight, sums):
    w = weight.transpose(0, 2, 1, 3).reshape(COLUMNS, DEPTH).astype("int64")
    total = sums + data[1:, 3 : 3 + DEPTH].astype("int64") @ w.T
    return total.astype("uint32").view("int32")


@emulated
@each
def test_numbers(mma):
    data, weight, sums = operands(mma)
    lib = built(mma)
    [got] = emulator.run(lib, [data, weight, sums], [np.zeros_like(sums)], "aarch64")
    np.testing.assert_array_equal(got, expected(data, weight, sums))
    other = weight.copy()
    other[-1, -1, -1, -1] += 1
    [got] = emulator.run(lib, [data, other, sums], [np.zeros_like(sums)], "aarch64")
    assert not np.array_equal(got, expected(data, weight, sums))


@each
def test_every_product_is_the_instructions(mma):
    found = re.findall(rf"\b{mma.instruction}\b", built(mma).inspect_source("asm"))
    assert len(found) == ROWS // 2 * (COLUMNS // 2) * (DEPTH // 8)


@emulated
def test_a_cpu_without_it_dies_of_an_illegal_instruction():
    data, weight, sums = operands(MMLA[0])
    with pytest.raises(ArtifactError, match="cortex-a76 died of an illegal instruction"):
        emulator.run(built(MMLA[0]), [data, weight, sums], [sums], "aarch64", cpu="cortex-a76")


@each
def test_registered_once(mma):
    assert mma.register() == mma.name
    first = s_tir.TensorIntrin.get(mma.name)
    assert mma.register() == mma.name
    assert s_tir.TensorIntrin.get(mma.name).same_as(first)
