"""Tests of what is measured in a child process that runs only the model."""

from __future__ import annotations

import subprocess

import pytest

from tvmopt.evaluate.fresh_process import measure_fresh_process


@pytest.fixture(scope="module")
def reference(conv_build):
    return conv_build / "convert" / "reference.onnx"


def test_a_small_process_starts_quickly(conv_bundle, reference):
    found = measure_fresh_process(conv_bundle, reference, threads=2)
    assert 10 < found.pop("peak_memory_mb") < 300  # megabytes; the compiler alone takes 250
    assert set(found) == {"cold_start_ms", "baseline_cold_start_ms"}
    assert all(0 < milliseconds < 60_000 for milliseconds in found.values())


def test_onnxruntime_is_left_out_without_a_reference(conv_bundle):
    assert set(measure_fresh_process(conv_bundle, None, 2)) == {"cold_start_ms", "peak_memory_mb"}


def test_peak_does_not_depend_on_the_parents_memory(conv_bundle, reference):
    ballast = bytearray(700_000_000)
    ballast[::4096] = b"x" * len(ballast[::4096])
    assert measure_fresh_process(conv_bundle, reference, 2)["peak_memory_mb"] < 300


def test_failure_of_the_child_is_an_error(tmp_path, reference):
    with pytest.raises(subprocess.CalledProcessError):
        measure_fresh_process(tmp_path, reference, 2)
