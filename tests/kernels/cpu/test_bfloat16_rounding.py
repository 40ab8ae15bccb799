"""Vectors are rounded by the AVX512-BF16 conversion instruction, bit for bit as NumPy rounds."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from tests.kernels.cpu import harness
from tvmopt import host
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.passes.bfloat16_rounding import NATIVE, round_natively
from tvmopt.kernels.emit import emit
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.policies import DefaultPolicy

WITH, WITHOUT = (resolve_target(cpu, 1) for cpu in ("cooperlake", "skylake-avx512"))
RUNS = not WITH.missing_on_host()
BF16 = np.dtype(ml_dtypes.bfloat16)
# Vectors that are no multiple of a register of 16 lanes; 17, 34 and 37 no multiple of 4 either.
PARTLY_FILLED = [4, 5, 12, 17, 20, 34, 37, 44, 52]


def scaled(x: relax.Expr) -> relax.Expr:
    return relax.op.astype(relax.op.multiply(x, relax.const(np.float32(1.0))), "bfloat16")


def elementwise(*shape: int, spec=WITH) -> tirx.PrimFunc:
    """Round float32 values of ``shape`` to bfloat16, with the top-1 schedule for ``spec``."""
    [func] = harness.prim_funcs(harness.lower(scaled, [(shape, "float32")])).values()
    return schedule_function(func, spec.arch()).func.with_attr("global_symbol", "main")


def assembly(func: tirx.PrimFunc, spec=WITH) -> str:
    module = tvm.IRModule({"main": func})
    return str(tvm.tirx.build(module, target=spec.to_tvm()).inspect_source("asm"))


def test_whole_vectors_are_rounded_by_the_instruction():
    assert "vcvtneps2bf16" in assembly(elementwise(4096))


@pytest.mark.parametrize("lanes", PARTLY_FILLED)
def test_the_last_register_may_be_partly_filled(lanes):
    func = elementwise(lanes)
    assert f"tvmopt_bfloat16_{lanes}" in str(func)
    text = assembly(func)
    assert text.count("vcvtneps2bf16") == math.ceil(lanes / 16)
    assert "vpsrld" not in text  # no integer rounding is left


@pytest.mark.parametrize("shape", [(128, 96), (6, 5, 64), (16, 12), (32, 1, 32)])
def test_vectors_of_fused_axes_are_rounded_by_the_instruction(shape):
    text = assembly(elementwise(*shape))
    assert "vcvtneps2bf16" in text
    assert "vpsrld" not in text  # no integer rounding is left


def test_other_cpus_round_by_integers():
    text = assembly(elementwise(4096, spec=WITHOUT), WITHOUT)
    assert "vcvtneps2bf16" not in text
    assert "zmm" in text  # still vectorised


def test_a_vector_of_three_is_left_alone():
    assert "vcvtneps2bf16" not in assembly(elementwise(3))


@pytest.mark.skipif(not RUNS, reason=f"this machine lacks {WITH.missing_on_host()}")
def test_numbers_are_those_of_numpy():
    random = np.random.default_rng(0)
    x = (random.standard_normal(4096) * 10.0 ** random.integers(-30, 30, 4096)).astype("float32")
    ties = (np.arange(256, dtype=np.uint32) << 16) + np.uint32(0x3F808000)
    x[:256] = ties.view("float32")
    x[256:260] = [np.inf, -np.inf, np.nan, 3.4e38]
    check_numbers(x)


@pytest.mark.skipif(not RUNS, reason=f"this machine lacks {WITH.missing_on_host()}")
@pytest.mark.parametrize("lanes", PARTLY_FILLED)
def test_numbers_of_a_partly_filled_register_are_those_of_numpy(lanes):
    check_numbers(np.random.default_rng(lanes).standard_normal(lanes).astype("float32"))


@pytest.mark.skipif(not RUNS, reason=f"this machine lacks {WITH.missing_on_host()}")
@pytest.mark.parametrize("shape", [(6, 5, 64), (6, 5, 96), (16, 12), (32, 1, 32)])
def test_numbers_of_fused_axes_are_those_of_numpy(shape):
    check_numbers(np.random.default_rng(0).standard_normal(shape).astype("float32"))


def check_numbers(x: np.ndarray) -> None:
    """Round ``x`` with the instruction and with NumPy; NaN may differ in its payload."""
    func = elementwise(*x.shape)
    out = tvm.runtime.tensor(np.zeros(x.shape, BF16))
    built = tvm.tirx.build(tvm.IRModule({"main": func}), target=WITH.to_tvm())
    built["main"](tvm.runtime.tensor(x), out)
    got, expected = out.numpy(), x.astype(BF16)
    same = got.view(np.uint16) == expected.view(np.uint16)
    assert (same | np.isnan(expected.astype("float32"))).all()
    assert (np.isnan(got.astype("float32")) == np.isnan(x)).all()


def test_a_function_that_is_not_annotated_is_returned_as_it_is():
    [func] = harness.prim_funcs(harness.lower(scaled, [((64,), "float32")])).values()
    assert round_natively(func).same_as(func)


def test_the_annotation_goes_and_the_loop_is_parted():
    func = elementwise(4096)
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, blocks.append), order="post")
    assert all(NATIVE not in block.annotations for block in blocks)
    assert sum(block.name_hint.endswith("_wide") for block in blocks) == 1


def test_this_machine_is_found_to_have_it_or_not():
    features = resolve_target("host", 1).arch().features()
    assert ("avx512bf16" in features) == ("avx512_bf16" in host.cpu_flags())


@pytest.mark.sample(1)
@pytest.mark.parametrize(("channels", "vector"), [(240, 16), (24, 8), (64, 32)])
def test_the_epilogue_of_a_partial_amx_tile_has_vectors_that_lie_inside_or_outside(
    channels: int, vector: int
):
    spec = resolve_target("sapphirerapids", 1)
    shapes = [((1, 4, 16, 64), "bfloat16"), ((1, 1, 64, channels), "bfloat16")]

    def build(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        sums = relax.op.nn.conv2d(
            x, w, data_layout="NHWC", kernel_layout="HWIO", out_dtype="float32"
        )
        return relax.op.astype(relax.op.nn.relu(sums), "bfloat16")

    [func] = harness.prim_funcs(harness.lower(build, shapes)).values()
    width = min(32, vector * 2)
    ranked = DefaultPolicy(func, spec.arch()).ranked
    hint = next(
        r.hint
        for r in ranked
        if r.hint.template == "matrix_tile" and r.hint.register_tile[-1] == width
    )
    kernel = finish(emit(func, hint).mod["main"], func)
    text = assembly(kernel.with_attr("global_symbol", "main"), spec)
    assert f"tvmopt_bfloat16_{vector}" in str(kernel)
    assert "vcvtneps2bf16" in text
    assert "gather" not in text
