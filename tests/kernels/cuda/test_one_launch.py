"""Horizontal fusion of kernels: one launch computes what its members compute."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import ir, relax, s_tir, te, tirx

from tests.emulator import cuda as emulate
from tests.kernels.cuda.functions import computed, lowered, sums
from tests.kernels.cuda.serial import H200, cuda_source, empty_of, hint, inputs_of, run
from tvmopt.kernels.cuda.common.one_launch import (
    DISJOINT_WRITES,
    Member,
    fits,
    kernels_of,
    one_launch,
)
from tvmopt.kernels.cuda.toolchain.dependent_launch import OVERLAPS
from tvmopt.kernels.emit import SCHEDULED_ATTR, emit_kernel

op = relax.op
H, F = "float16", "float32"


def _kernel(func: tirx.PrimFunc, threads: int, vector: int = 1, **more: object) -> tirx.PrimFunc:
    return emit_kernel(
        func, hint("gpu_elementwise", threads=threads, vector_elements=vector, **more)
    )


ADD = lowered(op.add, ((33, 16), F), ((33, 16), F))
CAST = lowered(lambda x: op.astype(op.nn.relu(x), H), ((33, 16), F))
TAKE = lowered(lambda w, i: op.take(w, i, 0), ((5, 24), H), ((9,), "int64"))
SCALAR = lowered(op.add, ((1,), F), ((1,), F))


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(3))
def test_each_output_is_its_members(seed: int) -> None:
    """Members of other threads, vectors and grids; CAST reads the first input of ADD."""
    funcs = [ADD, CAST, TAKE, SCALAR]
    kernels = [
        _kernel(ADD, 64, 4), _kernel(CAST, 128, 2, vectors_per_thread=2), _kernel(TAKE, 32),
        _kernel(SCALAR, 256),
    ]  # fmt: skip
    places = [(0, 1), (0,), (2, 3), (4, 5)]
    launch = one_launch([Member(k, p) for k, p in zip(kernels, places, strict=True)])
    given = {}
    for func, place in zip(funcs, places, strict=True):
        for at, array in zip(place, inputs_of(func, seed), strict=True):
            given.setdefault(at, array)
    inputs = [given[at] for at in sorted(given)]
    outputs = emulate.run(launch, inputs, [empty_of(f) for f in funcs], H200, seed=seed)
    for func, place, got in zip(funcs, places, outputs, strict=True):
        np.testing.assert_array_equal(got, run(func, [given[at] for at in place]))


def test_there_is_one_kernel_whose_blocks_are_all_members() -> None:
    members = [Member(_kernel(ADD, 64), (0, 1)), Member(_kernel(CAST, 128), (0,))]
    launch = one_launch(members)
    grid = launch.body.block.body
    assert isinstance(grid, tirx.For) and int(grid.extent) == 9 + 5
    assert [str(p.dtype) for p in launch.params] == [F, F, F, H]
    assert launch.attrs[SCHEDULED_ATTR] and launch.attrs[OVERLAPS]
    code = cuda_source(launch.with_attr("global_symbol", "main"))
    assert code.count("__global__") == 2 and "__launch_bounds__(128)" in code  # declared, defined


def test_a_function_may_be_several_members() -> None:
    kernel = _kernel(ADD, 64)
    launch = one_launch([Member(kernel, (0, 1)), Member(kernel, (1, 2))])
    inputs = [*inputs_of(ADD, 0), inputs_of(ADD, 1)[0]]
    first, second = emulate.run(launch, inputs, [empty_of(ADD)] * 2, H200)
    np.testing.assert_array_equal(first, inputs[0] + inputs[1])
    np.testing.assert_array_equal(second, inputs[1] + inputs[2])


def test_kernels_that_share_memory_or_reduce_are_no_members() -> None:
    transpose = lowered(lambda x: op.permute_dims(x, [1, 0]), ((64, 64), H))
    transposed = emit_kernel(transpose, hint("gpu_transpose", tile=(32, 32), threads=128))
    copy = lowered(lambda x: op.reshape(x, (8, 8)), ((64,), F))
    copied = emit_kernel(copy, hint("gpu_copy", threads=128))
    for kernel in (transposed, copied, sums(1, ((8, 8), H)), ADD):
        assert kernels_of(kernel) == []
    with pytest.raises(ValueError, match="must be of elementwise kernels"):
        one_launch([Member(copied, (0,))])


def _two_nests(overwrites: bool) -> tirx.PrimFunc:
    """Return two kernels; the second reads what the first stores, or overwrites it."""
    x, y, z = (tirx.decl_buffer((8,), F, name) for name in "xyz")
    target = y if overwrites else z

    def nest(buffer: tirx.Buffer, value: object) -> tirx.Stmt:
        i, v = tirx.Var("i", "int64"), tirx.Var("v", "int64")
        zero, eight = tirx.IntImm("int64", 0), tirx.IntImm("int64", 8)
        axis = tirx.IterVar(ir.Range(zero, eight), v, 0)
        one = [ir.Range.from_min_extent(v, tirx.IntImm("int64", 1))]
        store = tirx.BufferStore(buffer, value(v), [v])
        block = s_tir.SBlock([axis], [], [tirx.BufferRegion(buffer, one)], "b", store)
        inside = s_tir.SBlockRealize([i], tirx.IntImm("bool", True), block)
        grid = tirx.IterVar(None, tirx.Var("", "int64"), tirx.IterVar.ThreadIndex, "blockIdx.x")
        kind = tirx.ForKind.THREAD_BINDING
        return tirx.For(i, zero, eight, kind, inside, grid)

    first = nest(y, lambda v: x[v])
    second = nest(target, lambda v: x[v] if overwrites else y[v])
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt([first, second]))
    body = s_tir.SBlockRealize([], tirx.IntImm("bool", True), root)
    return tirx.PrimFunc([x, y, z], body)


@pytest.mark.parametrize("overwrites", [False, True])
def test_nests_that_depend_on_each_other_are_no_members(overwrites: bool) -> None:
    func = _two_nests(overwrites)
    assert kernels_of(func) == []
    assert len(kernels_of(func.with_attr(DISJOINT_WRITES, True))) == (2 if overwrites else 0)


def test_indices_stay_in_32_bits() -> None:
    nests = kernels_of(_kernel(ADD, 64))
    large = tirx.decl_buffer((2**16, 2**14), H)
    assert fits(nests, [large]) and not fits(nests * 2, [large])


def test_extents_of_large_members_are_bounded() -> None:
    wide = computed(lambda x: te.compute(x.shape, lambda i: x[i] + 1.0), ((2**30,), F))
    kernel = _kernel(wide, 1024)
    with pytest.raises(ValueError, match="32-bit"):
        one_launch([Member(kernel, (0,)), Member(kernel, (1,))])
