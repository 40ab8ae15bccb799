"""Residual inputs of an epilogue: which are prefetched with TMA, and that they are."""

from __future__ import annotations

import dataclasses
import re

import pytest
from tvm import tirx

from tests.kernels.cuda.hopper.epilogues import elementwise
from tests.kernels.cuda.hopper.sources import cuda_source, gemm_config
from tvmopt.kernels.cuda.hopper.cost import gemm_cost
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.problem import GemmProblem
from tvmopt.kernels.cuda.hopper.residual import residual_of

SMALL = gemm_config(consumer_warpgroups=1, tile_n=64, epilogue_buffers=1)


def _epilogue(inputs):
    return elementwise("float32", "float16", lambda acc, *x: sum(x, acc), inputs, rank=2)


@pytest.mark.parametrize(
    ("inputs", "number"),
    [
        ([("float16", (64, 128), (0, 1))], 0),
        ([("float16", (128,), (1,)), ("float16", (64, 128), (0, 1))], 1),
        ([("float16", (128, 64), (1, 0))], None),
        ([("float32", (64, 128), (0, 1))], None),
        ([("float16", (64, 1), (0, -1))], None),
    ],
)
def test_which_input_is_a_residual(inputs, number):
    found = residual_of(_epilogue(inputs), (64, 128), "float16")
    assert (found and found.number) == number
    if found is not None:
        assert len(found.epilogue.reads) == len(inputs) - 1


def test_rows_of_several_axes():
    row, column = tirx.Var("r", "int32"), tirx.Var("c", "int32")
    acc = tirx.Var("a", "float32")
    residual = tirx.decl_buffer((4, 16, 128), "float16")
    for inner, right in ((16, True), (8, False)):
        load = residual[tirx.truncdiv(row, inner), tirx.truncmod(row, inner), column]
        epilogue = Epilogue(acc, (row, column), tirx.Cast("float16", acc) + load, (residual,))
        assert (residual_of(epilogue, (64, 128), "float16") is not None) == right


def test_a_prefetched_residual_costs_no_index_arithmetic():
    """With rows of two axes, the epilogue divides, but a prefetched element has no address."""
    row, column = tirx.Var("r", "int32"), tirx.Var("c", "int32")
    acc = tirx.Var("a", "float32")

    def cycles(shape, *indices, buffers):
        residual = tirx.decl_buffer(shape, "float16")
        value = tirx.Cast("float16", acc + tirx.Cast("float32", residual[indices]))
        epilogue = Epilogue(acc, (row, column), value, (residual,))
        problem = GemmProblem(4096, 768, 768, "float16", "float16", epilogue=epilogue)
        return gemm_cost(problem, gemm_config(tile_n=128, epilogue_buffers=buffers)).cycles

    rows = tirx.truncdiv(row, 128), tirx.truncmod(row, 128)
    for buffers, same in ((2, True), (1, False)):
        flat = cycles((4096, 768), row, column, buffers=buffers)
        divided = cycles((32, 128, 768), *rows, column, buffers=buffers)
        assert (divided == flat) == same and divided >= flat


@pytest.mark.parametrize(
    ("config", "prefetched"),
    [
        (SMALL, True),
        (dataclasses.replace(SMALL, tile_n=128), False),
        (dataclasses.replace(SMALL, tile_n=128, epilogue_buffers=2), True),
        (dataclasses.replace(SMALL, smem_store=True), False),
        (dataclasses.replace(SMALL, swap_ab=True), False),
    ],
)
def test_prefetch(config, prefetched):
    assert config.buffers_hold_tile("float16") == prefetched
    epilogue = _epilogue([("float16", (64, 128), (0, 1))])
    source = cuda_source(gemm(GemmProblem(64, 128, 64, epilogue=epilogue), config))
    kernel = source[source.rindex("main_kernel(") :].partition("{")[0]
    maps = 2 if config.smem_store else 3
    assert kernel.count("CUtensorMap") == maps + prefetched


def test_the_epilogue_reads_the_prefetched_residual():
    epilogue = _epilogue([("float16", (64, 128), (0, 1))])
    source = cuda_source(gemm(GemmProblem(64, 128, 64, epilogue=epilogue), SMALL))
    # Both rings lie before it in shared memory: 4 stages of 64 rows and of 64 columns of 128 bytes.
    prefetched = 2 * 4 * 64 * 64
    reads = re.findall(r"\bcopy_4\(.*?_ptr\)\[(.*)\]\)\)\);", source)
    assert reads and all(int(re.findall(r"\+ (\d+)\)?$", r)[-1]) >= prefetched for r in reads), (
        reads[0]
    )
    assert "copy_4" in source
