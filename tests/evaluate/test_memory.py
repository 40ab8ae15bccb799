"""Tests of peak memory: a child process runs only the model."""

from __future__ import annotations

import subprocess

import pytest

from tvmopt.evaluate.memory import peak_memory_mb


def test_peak_is_that_of_a_small_process(conv_bundle):
    peak = peak_memory_mb(conv_bundle)
    assert 10 < peak < 300  # megabytes; the compiler alone takes 250


def test_peak_does_not_depend_on_the_parents_memory(conv_bundle):
    ballast = bytearray(700_000_000)
    ballast[::4096] = b"x" * len(ballast[::4096])
    assert peak_memory_mb(conv_bundle) < 300


def test_failure_of_the_child_is_an_error(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        peak_memory_mb(tmp_path)
