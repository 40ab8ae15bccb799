"""A float32 3 x 3 convolution as one function of four Winograd kernels: emulated, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.cuda_rows import row
from tests.emulator.cuda import ORDERS, run
from tests.kernels.cuda import serial
from tests.kernels.cuda.products import Conv, error, inputs
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.winograd.config import WinogradConvConfig
from tvmopt.kernels.cuda.winograd.conv import CONV_NAME, winograd_conv
from tvmopt.kernels.cuda.winograd.conv_family import WinogradConvolution
from tvmopt.kernels.emit import NotApplicable, emit_kernel, hint_from_dict
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.tf32 import allow_tf32
from tvmopt.kernels.workload import Refusal

H200, A100 = GPUS["nvidia-h200"], GPUS["nvidia-a100"]
CONFIG = WinogradConvConfig(
    CONV_NAME, H200, tile=(32, 32), threads=(8, 8), k_block=8, stages=2, raster_group=8
)


def config(m: int, **fields: object) -> WinogradConvConfig:
    return WinogradConvConfig(**{**vars(CONFIG), "m": m, **fields})


@pytest.mark.sample(2)
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(
    "case",
    [
        Conv("NHWC", 2, 9, 16, 20, 3, 1, 1),
        Conv("NHWC", 1, 14, 32, 32, 3, 1, 0),
        Conv("NHWC", 3, 7, 17, 18, 3, 1, 2),
    ],
    ids=str,
)
def test_right_for_any_extents(case, m) -> None:
    func = case.func()
    arrays = inputs(func)
    kernel = emit_kernel(func, config(m))
    results = [run(kernel, arrays, [serial.empty_of(func)], H200, order=o)[0] for o in ORDERS]
    for got in results:
        assert error(got, case.numpy(arrays)) <= (1e-6 if m == 2 else 5e-6)


def test_split_k_of_the_gemm_is_a_fifth_kernel() -> None:
    case = Conv("NHWC", 1, 8, 64, 16, 3, 1, 1)
    func = case.func()
    arrays = inputs(func)
    kernel = emit_kernel(func, config(4, split_k=2))
    [got] = run(kernel, arrays, [serial.empty_of(func)], H200, order=ORDERS[0])
    assert error(got, case.numpy(arrays)) <= 5e-6
    for hint, kernels in ((config(4), 4), (config(4, split_k=2), 5)):
        source = build_kernels({"main": emit_kernel(func, hint)}, H200).imports[0].inspect_source()
        assert source.count('extern "C" __global__') == 2 * kernels  # declarations and definitions


def test_a_configuration_survives_its_record() -> None:
    assert hint_from_dict(config(2, split_k=3).to_dict()) == config(2, split_k=3)
    assert config(2).group != config(4).group


@pytest.mark.parametrize("arch", [H200, A100], ids=lambda arch: arch.name)
@pytest.mark.parametrize(
    "name",
    ["conv2d-128-512-7-7-512-3-3-1-1-1-float32", "conv2d-64-128-28-28-128-3-3-1-1-1-float32"],
)
def test_the_cost_model_prefers_it_for_many_channels(name, arch) -> None:
    policy = policy_of(row(name).func, arch)
    assert policy.ranked[0].hint.template == CONV_NAME
    chosen = policy.emit_config(20)
    assert any(hint.template == CONV_NAME and hint.m == 4 for hint in chosen)
    assert any(hint.template == "simt_matmul" for hint in chosen)
    emit_kernel(row(name).func, chosen[0])


def test_small_convolutions_stay_direct() -> None:
    policy = policy_of(Conv("NHWC", 2, 9, 16, 20, 3, 1, 1).func(), H200)
    assert policy.ranked[0].hint.template == "simt_matmul"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Conv("NHWC", 2, 9, 16, 16, 3, 2, 1), "3 x 3 convolution of stride 1"),
        (Conv("NHWC", 2, 9, 16, 16, 5, 1, 2), "3 x 3 convolution of stride 1"),
        (Conv("NHWC", 2, 9, 16, 16, 3, 1, 1, 2), "3 x 3 convolution of stride 1"),
        (Conv("NHWC", 2, 9, 8, 16, 3, 1, 1), "fewer than 16 channels"),
        (Conv("NHWC", 2, 9, 16, 16, 3, 1, 1, dtype="float16"), "not a float32 convolution"),
        (Conv("NHWC", 2, 9, 16, 16, 3, 1, 1, bias=True), "has an epilogue"),
    ],
    ids=str,
)
def test_other_convolutions_are_refused(case, reason) -> None:
    found = winograd_conv(case.func())
    assert isinstance(found, Refusal) and reason in found.reason


def test_constant_weights_and_allowed_tf32_are_refused() -> None:
    func = Conv("NHWC", 2, 9, 16, 16, 3, 1, 1).func()
    constant = winograd_conv(func.with_attr("layout_free_buffers", [1]))
    assert isinstance(constant, Refusal) and "its weight is constant" in constant.reason
    refused = winograd_conv(allow_tf32(func))
    assert isinstance(refused, Refusal) and "TF32" in refused.reason
    with pytest.raises(NotApplicable, match="no tiles of 3"):
        emit_kernel(func, config(3))


def test_nan_spreads_within_its_tile_only() -> None:
    case = Conv("NHWC", 1, 16, 16, 16, 3, 1, 1)
    func = case.func()
    arrays = inputs(func)
    arrays[0][0, 2, 2, 0] = np.nan
    [got] = run(emit_kernel(func, config(4)), arrays, [serial.empty_of(func)], H200)
    places = np.isnan(got[0, :, :, 0])
    assert places[1:4, 1:4].all() and not places[8:, :].any() and not places[:, 8:].any()
    assert WinogradConvolution().spreads_non_finite(func)
