"""Inputs of an epilogue that are loaded ahead: which they are, and that they are."""

from __future__ import annotations

import dataclasses
import re

import pytest
from tvm import tirx

from tests.kernels.cuda.hopper.epilogues import elementwise
from tests.kernels.cuda.hopper.sources import cuda_source
from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.problem import GemmProblem
from tvmopt.kernels.cuda.hopper.residual import residual_of

SMALL = Config(consumers=1, columns=64, stages=4, buffers=1)


def _ending(inputs):
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
def test_which(inputs, number):
    found = residual_of(_ending(inputs), (64, 128), "float16")
    assert (found and found.number) == number
    if found is not None:
        assert len(found.ending.reads) == len(inputs) - 1


def test_rows_of_several_axes():
    row, column = tirx.Var("r", "int32"), tirx.Var("c", "int32")
    acc = tirx.Var("a", "float32")
    residual = tirx.decl_buffer((4, 16, 128), "float16")
    for inner, right in ((16, True), (8, False)):
        load = residual[tirx.truncdiv(row, inner), tirx.truncmod(row, inner), column]
        ending = Epilogue(acc, (row, column), tirx.Cast("float16", acc) + load, (residual,))
        assert (residual_of(ending, (64, 128), "float16") is not None) == right


@pytest.mark.parametrize(
    ("config", "ahead"),
    [
        (SMALL, True),
        (dataclasses.replace(SMALL, columns=128), False),
        (dataclasses.replace(SMALL, columns=128, buffers=2), True),
        (dataclasses.replace(SMALL, staged=True), False),
        (dataclasses.replace(SMALL, swap=True), False),
    ],
)
def test_it_is_loaded_ahead(config, ahead):
    assert config.holds_all("float16") == ahead
    ending = _ending([("float16", (64, 128), (0, 1))])
    source = cuda_source(gemm(GemmProblem(64, 128, 64, epilogue=ending), config))
    kernel = source[source.rindex("main_kernel(") :].partition("{")[0]
    maps = 2 if config.staged else 3
    assert kernel.count("CUtensorMap") == maps + ahead


def test_it_is_read_where_it_was_loaded():
    ending = _ending([("float16", (64, 128), (0, 1))])
    source = cuda_source(gemm(GemmProblem(64, 128, 64, epilogue=ending), SMALL))
    # Both rings lie before it in shared memory: 4 stages of 64 rows and of 64 columns of 128 bytes.
    ahead = 2 * 4 * 64 * 64
    reads = re.findall(r"\bcopy_4\(.*?_ptr\)\[(.*)\]\)\)\);", source)
    assert reads and all(int(re.findall(r"\+ (\d+)\)?$", r)[-1]) >= ahead for r in reads), reads[0]
    assert "copy_4" in source
