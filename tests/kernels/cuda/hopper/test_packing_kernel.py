"""Packing of operands that TMA cannot address: which are packed, and the two kernels."""

from __future__ import annotations

import dataclasses

import pytest

from tests.kernels.cuda.hopper.sources import (
    compile_with_nvcc,
    conv_config,
    cuda_source,
    fitted,
    gemm_config,
)
from tvmopt.kernels.cuda.hopper.conv import conv
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.packing import pitch_of
from tvmopt.kernels.cuda.hopper.problem import GemmProblem

SMALL = gemm_config(consumer_warpgroups=1, tile_n=64, epilogue_buffers=1)
SMEM_STORE = dataclasses.replace(SMALL, smem_store=True, persistent=False)


@pytest.mark.parametrize(
    ("width", "dtype", "pitch"),
    [(1001, "float16", 1008), (1008, "bfloat16", 1008), (1, "int8", 16), (17, "int8", 32)],
)
def test_pitch(width, dtype, pitch):
    assert pitch_of(width, dtype) == pitch


@pytest.mark.parametrize(
    ("fields", "packed", "packing_bytes"),
    [
        ({}, (False, False), 0),
        ({"k": 63}, (True, True), 2 * 2 * 63 * (64 + 72)),
        ({"n": 77, "trans_b": False}, (False, True), 2 * 2 * 64 * 77),
        ({"m": 77, "trans_a": True}, (True, False), 2 * 2 * 64 * 77),
        ({"k": 63, "batch": 3, "batch_b": False}, (True, True), 2 * 2 * 63 * (3 * 64 + 72)),
        ({"dtype": "int8", "out": "int32", "k": 72}, (True, True), 2 * 72 * (64 + 72)),
    ],
)
def test_which_operands_are_packed(fields, packed, packing_bytes):
    problem = GemmProblem(**{"m": 64, "n": 72, "k": 64, **fields})
    assert (problem.packed, problem.packing_bytes) == (packed, packing_bytes)
    assert problem.refusal is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"k": 63}, ["copy_pixels_2_1_1"]),
        ({"k": 66}, ["copy_pixels_4_1_1"]),
        ({"k": 68, "batch": 2}, ["copy_pixels_8_1_1"]),
        ({"k": 17, "dtype": "int8", "out": "int32"}, ["copy_pixels_1_1_1"]),
        ({"k": 63, "dtype": "bfloat16", "out": "bfloat16"}, ["copy_pixels_2_1_1"]),
        ({"n": 77, "trans_b": False, "dynamic": True}, ["copy_pixels_2_1_1"]),
        ({"dtype": "int8", "out": "int32", "trans_b": False}, ["copy_turned_1_", "m64n64k32"]),
        ({"dtype": "float8_e4m3fn", "trans_a": True}, ["copy_turned_1_", "e4m3.e4m3"]),
    ],
)
def test_packed_gemm(fields, words):
    config = dataclasses.replace(SMEM_STORE, persistent=bool(fields.get("dynamic")))
    problem = GemmProblem(**{"m": 64, "n": 64, "k": 64, **fields})
    source = cuda_source(gemm(problem, fitted(config, problem.dtype)))
    assert source.count("__global__") == 4  # two kernels, declared and defined
    assert "wgmma.mma_async" in source
    for word in words:
        assert word in source


def test_aligned_operands_are_not_packed():
    assert cuda_source(gemm(GemmProblem(64, 64, 64), SMALL)).count("__global__") == 2


def test_images_of_few_channels(tmp_path):
    problem = ConvProblem(
        2, 32, 40, 3, 64, kernel=(7, 7), stride=(2, 2), padding=(3, 3, 3, 3), weight="HWIO"
    )
    assert problem.few_channels is not None and problem.packed == (True, True)
    source = cuda_source(conv(problem, conv_config(SMALL)))
    assert "copy_pixels_2_4_3" in source and "copy_one_2" in source
    assert "cp.async.bulk.tensor.5d.shared" in source
    if compile_with_nvcc(source, tmp_path) is None:
        pytest.skip("nvcc is not installed")


@pytest.mark.parametrize(
    ("fields", "packed"),
    [
        ({"channels": 12}, (True, True)),
        ({"channels": 12, "weight": "HWIO"}, (True, False)),
        ({"filters": 41, "weight": "HWIO"}, (False, True)),
        ({"channels": 3, "dilation": (2, 2)}, (True, True)),
        ({"channels": 20, "dtype": "int8", "out": "int32"}, (True, True)),
        ({"weight": "HWIO", "dtype": "int8", "out": "int32"}, (False, True)),
    ],
)
def test_unaligned_channels(fields, packed):
    plain = {"images": 1, "height": 14, "width": 14, "channels": 64, "filters": 64}
    problem = ConvProblem(**{**plain, **fields})
    assert problem.refusal is None and problem.packed == packed
    assert (
        cuda_source(conv(problem, conv_config(fitted(SMEM_STORE, problem.dtype)))).count(
            "__global__"
        )
        == 4
    )
