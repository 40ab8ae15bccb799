"""Rows: medians, shares, roofline, and the table beside a float32 build."""

from __future__ import annotations

import numpy as np
import pytest

from tests.profile.planted import row
from tvmopt.device.cpu import CpuArch
from tvmopt.device.target import resolve_target
from tvmopt.frontend.layers import Layer
from tvmopt.profile.kernels import KernelFacts, operators_of
from tvmopt.profile.roofline import COMPUTE, MEMORY, KernelRoofline
from tvmopt.profile.rows import beside, layer_times, profile_rows, read_rows, write_rows

ARCH = CpuArch("haswell", "x86_64", cores=2, simd_bits=256, vector_registers=16)
ROOFLINE = KernelRoofline(ARCH, frozenset({"avx2", "avx_vnni"}), 1e9)
LAYER = Layer(3, "conv", "Conv", "1x8", "8x8x3x3", 64, 64, "int8", "uint8", "uint8", "NCHW")


def test_peaks():
    # 2 cores, 2 FMA ports, 8 lanes, 2 FLOPs, at 1 GHz.
    assert ROOFLINE.peak_flops("float32") == 64e9
    assert ROOFLINE.peak_flops("int8") == 4 * 64e9
    assert ROOFLINE.bandwidth(1000) == 2 * 64e9  # of L1
    assert ROOFLINE.bandwidth(1e9) == 2 * 8e9  # of DRAM
    assert ROOFLINE.microseconds(64e3, 10, "float32") == (1.0, COMPUTE)
    us, bound = ROOFLINE.microseconds(0, 1e9, "float32")
    assert us == pytest.approx(62_500) and bound == MEMORY


@pytest.mark.parametrize(("cpu", "fmas"), [("znver4", 1), ("znver3", 2), ("sapphirerapids", 2)])
def test_an_fma_of_512_bits_takes_both_ports_of_a_zen_4(cpu: str, fmas: int) -> None:
    arch = resolve_target(cpu, 2).arch()
    assert isinstance(arch, CpuArch)
    lanes = arch.lanes("float32")
    assert KernelRoofline(arch, frozenset(), 1e9).peak_flops("float32") == 2e9 * 2 * lanes * fmas


def test_rows_have_medians_and_shares():
    facts = [
        KernelFacts("a", LAYER, dtype="int8", flops=256e3, predicted_cycles=2000.0),
        KernelFacts("b"),
    ]
    runs = [np.array([[0, t], [t, t + 1000]]) for t in (3000, 9000, 2000)]
    first, second = profile_rows(facts, runs, ROOFLINE)
    assert (first.median_us, first.share) == (3.0, 0.75)
    assert (first.layer, first.layer_name, first.op) == (3, "conv", "Conv")
    assert first.roofline_us == pytest.approx(1.0)
    assert first.roofline_share == pytest.approx(1 / 3)
    assert first.predicted_us == 2.0
    assert (second.layer, second.predicted_us, second.median_us) == (None, None, 1.0)


def test_layers_stand_beside_their_float32_form():
    rows = [row(median_us=2.0), row(call=1, median_us=4.0), row(call=2, layer=None)]
    first, second, third = beside(rows, [row(median_us=3.0), row(layer=9)])
    assert (first.baseline_us, first.ratio) == (3.0, 2.0)
    assert second.ratio == 2.0
    assert third.ratio is None
    assert layer_times(rows) == {0: 6.0}


def test_the_file_has_a_line_for_each_row(tmp_path):
    write_rows(tmp_path / "profile.csv", [row(), row(call=1, layer=None, layer_name="=1+1")])
    first, second = read_rows(tmp_path / "profile.csv")
    assert first["median_us"] == "60" and first["baseline_us"] == ""
    assert second["layer"] == "" and second["layer_name"] == "'=1+1"


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("fused_conv2d1_add_relu12", "conv2d add relu"),
        ("fused_conv2d_add_tir_round1_cast21", "conv2d add round cast"),
        ("max_pool2d1", "max pool2d"),
        ("matmul", "matmul"),
    ],
)
def test_operators_are_read_from_the_name(name, operators):
    assert operators_of(name) == operators
