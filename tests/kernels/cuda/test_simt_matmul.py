"""GEMM without tensor cores: correct for any extents, and the code it lowers to."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import tvm_ffi
from tvm.s_tir import meta_schedule as ms

from tests.kernels.cuda import on_cpu
from tests.kernels.cuda.products import Case, Conv, error, inputs, module
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.simt.config import SimtConfig
from tvmopt.kernels.cuda.simt.family import SimtMatmul
from tvmopt.kernels.cuda.simt.schedule import why_not_simt
from tvmopt.kernels.workload import Refusal

ARCH = GPUS["nvidia-h200"]
SMALL = SimtConfig(
    "simt_matmul", ARCH, tile=(32, 32), threads=(8, 8), k_block=8, stages=2, raster_group=4
)
LARGE = SimtConfig("simt_matmul", ARCH, tile=(128, 128), threads=(16, 16), k_block=8, stages=2)
CASES = (
    Case("nn", 37, 41, 29),
    Case("nt", 32, 64, 48, bias=True),
    Case("tn", 37, 41, 29, batch=3),
    Case("tt", 5, 3, 1),
    Case("nn", 1, 7, 3),
    Case("nn", 40, 44, 52, "float64"),
    Case("nt", 40, 44, 52, "int32"),
    Case("nn", 40, 44, 52, "float16", bias=True),
    Case("nn", 40, 44, 52, "int8", out="int32"),
    Conv("NHWC", 2, 7, 3, 5, 3, 2, 1, bias=True),
    Conv("NCHW", 2, 7, 3, 5, 3, 1, 1, 2, bias=True),
    Conv("HWNC", 2, 7, 4, 8, 1, 2),
)
TOLERANCE = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-14}


def schedule(case: Case | Conv, hint: SimtConfig):
    return SimtMatmul().emit(case.func(), hint)


def cuda(sch) -> str:
    return build_kernels({"main": sch.mod["main"]}, ARCH).imports[0].inspect_source("cuda")


@pytest.mark.sample(4)
@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_right_for_any_extents(case, split) -> None:
    hint = dataclasses.replace(SMALL, split_k=split)
    sch = schedule(case, hint)
    if case.shapes()[0] == (1, 5) and split > 1:
        assert isinstance(sch, Refusal)  # K of 1 cannot be split
        return
    arrays = inputs(case.func())
    found = on_cpu.run(sch, arrays)
    assert error(found, case.numpy(arrays)) <= TOLERANCE.get(case.out or case.dtype, 0.0)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "change",
    [
        {"tile": (16, 64), "threads": (4, 16)},
        {"tile": (64, 32), "threads": (8, 8), "warp_rows": 8},
        {"k_block": 16},
        {"stages": 1},
        {"raster_group": 0},
        {"stages": 3, "async_copy": True},
    ],
    ids=str,
)
def test_right_in_every_form(change) -> None:
    case = Case("nt", 70, 66, 35, bias=True)
    sch = schedule(case, dataclasses.replace(SMALL, **change))
    arrays = inputs(case.func())
    assert error(on_cpu.run(sch, arrays), case.numpy(arrays)) < 1e-6


def test_draws_in_an_epilogue_that_reads_twice() -> None:
    """As gelu does: the accumulator and a function of it in one expression."""
    from tvm import te, tirx

    case = Case("nn", 20, 24, 12)
    a, b = te.placeholder((20, 12), "float32", "a"), te.placeholder((12, 24), "float32", "b")
    k = te.reduce_axis((0, 12), "k")
    c = te.compute((20, 24), lambda i, j: te.sum(a[i, k] * b[k, j], axis=[k]), "c")
    half = te.compute((20, 24), lambda i, j: c[i, j] * 0.5, "half")
    bounded = te.compute((20, 24), lambda i, j: tirx.max(half[i, j], tirx.const(0, "float32")), "m")
    out = te.compute((20, 24), lambda i, j: half[i, j] * bounded[i, j] + c[i, j], "out")
    func = te.create_prim_func([a, b, out])
    arrays = inputs(func)
    product = case.numpy(arrays)
    expected = product * 0.5 * np.maximum(product * 0.5, 0) + product
    for split in (1, 2):
        sch = SimtMatmul().emit(func, dataclasses.replace(SMALL, split_k=split))
        assert error(on_cpu.run(sch, arrays), expected) < 1e-6


def test_moves_16_bytes_at_once() -> None:
    source = cuda(schedule(Case("nn", 512, 512, 512), LARGE))
    assert "__launch_bounds__(256)" in source
    inner = [line for line in source.splitlines() if "_local_ptr" in line and "float4" in line]
    assert inner
    # Loads of both operands from global memory, and stores of the result.
    assert re.search(r"= \*\(float4\*\)\(A_ptr", source)
    assert re.search(r"\*\(float4\*\)\(C_ptr .*\) =", source)


def test_stores_one_half_of_shared_memory_while_it_reads_the_other() -> None:
    source = cuda(schedule(Case("nn", 512, 512, 512), LARGE))
    start = source.index("for (int ax3_0 = 0")
    loop = source[start : source.index("\n  }\n", start)]
    assert loop.count("__syncthreads()") == 1
    loop = loop[loop.index("__syncthreads()") :]
    places = [
        loop.index("((ax3_0 + 1) & 1)"),  # the buffer that is stored to
        loop.index("(A_ptr"),
        loop.index("#pragma unroll"),
        loop.index("(ax3_0 & 1)"),  # the buffer that is read
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("depth", [8, 16, 24])
def test_short_reductions_meet_between_storing_and_reading(depth) -> None:
    """Steps that TVM unrolls out of the loop keep their barriers."""
    source = cuda(schedule(Case("nn", 64, 64, depth), LARGE))
    assert "for (int ax3_0 =" not in source
    assert source.count("__syncthreads()") >= 1


def test_products_are_unrolled_by_the_compiler() -> None:
    """nvcc takes many seconds to compile a K block of unrolled multiply-adds as source text."""
    assert len(cuda(schedule(Case("nn", 512, 512, 512), LARGE))) < 30_000


def test_ragged_rows_keep_vectors() -> None:
    source = cuda(schedule(Case("nt", 300, 300, 300), LARGE))
    assert re.search(r"\*\(float4\*\)\(A_ptr", source)


def test_trace_replays_from_a_database(tmp_path) -> None:
    case = Case("nn", 70, 66, 35, bias=True)
    sch = schedule(case, dataclasses.replace(SMALL, split_k=2))
    paths = [str(tmp_path / name) for name in ("workload.json", "record.json")]
    database = ms.database.JSONDatabase(*paths)
    workload = database.commit_workload(module(case.func()))
    record = ms.database.TuningRecord(sch.trace, workload, [1.0], ARCH.to_tvm())
    database.commit_tuning_record(record)
    again = ms.database.JSONDatabase(*paths)
    found = again.query_schedule(module(case.func()), ARCH.to_tvm(), "main")
    assert tvm_ffi.structural_equal(found.mod, sch.mod)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"split_k": 0}, "at least 1"),
        ({"threads": (7, 8)}, "divide"),
        ({"threads": (2, 8)}, "whole warps"),
        ({"k_block": 1}, "same number"),
        ({"stages": 3}, "stages"),
    ],
    ids=str,
)
def test_says_what_is_wrong_with_a_hint(change, reason) -> None:
    hint = dataclasses.replace(SMALL, **change)
    refusal = why_not_simt(hint)
    assert refusal is not None and reason in refusal.reason
    assert isinstance(schedule(Case("nn", 8, 8, 8), hint), Refusal)


def test_refuses_what_is_no_product() -> None:
    from tvm import te

    a = te.placeholder((8, 8), "float32", "a")
    k = te.reduce_axis((0, 8), "k")
    total = te.compute((8,), lambda i: te.sum(a[i, k], axis=[k]), "total")
    assert isinstance(SimtMatmul().emit(te.create_prim_func([a, total]), SMALL), Refusal)
    square = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * a[k, j], axis=[k]), "square")
    assert isinstance(SimtMatmul().emit(te.create_prim_func([a, square]), SMALL), Refusal)


def test_refuses_an_axis_that_no_index_names() -> None:
    """TVM drops the channel of a convolution of one; there is nothing to pad with zeros then."""
    assert isinstance(schedule(Conv("NCHW", 3, 3, 1, 40, 1), SMALL), Refusal)
    one_pixel = Conv("NHWC", 1, 3, 8, 40, 3)
    assert isinstance(schedule(one_pixel, SMALL), Refusal)
