"""Tests of measured memory bandwidth: one measurement per machine, cached, robust to bad files."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from tvmopt import host
from tvmopt.device import bandwidth
from tvmopt.device.bandwidth import (
    FITTED,
    cache_file,
    measure,
    scale,
    scaled,
    with_measured_bandwidths,
)
from tvmopt.device.cpu import CpuArch
from tvmopt.device.target import resolve_target

ARCH = CpuArch("skylake-avx512", "x86_64", 2, 512, 32)
TWICE = {level: 2.2 * ratio for level, ratio in FITTED.items()}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CpuArch]:
    """Fake bandwidths in which lower cache levels are twice as fast, and an empty cache folder."""
    calls: list[CpuArch] = []

    def fake(arch: CpuArch) -> dict[str, float]:
        calls.append(arch)
        return TWICE

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(bandwidth, "measure", fake)
    bandwidth._ratios.cache_clear()
    yield calls
    bandwidth._ratios.cache_clear()


@pytest.mark.parametrize(
    ("ratio", "factor"), [(0.1, 1), (0.13, 1), (0.08, 1), (0.19, 2), (0.05, 0.5), (0.41, 4)]
)
def test_ratios_count_in_powers_of_two(ratio, factor) -> None:
    assert scale(ratio, 0.1) == factor


def test_bandwidths_follow_what_is_measured(measured) -> None:
    got = with_measured_bandwidths(ARCH)
    assert got.l1_bandwidth == ARCH.l1_bandwidth
    for level in FITTED:
        name = f"{level}_bandwidth"
        assert getattr(got, name) == 2 * getattr(ARCH, name)
    assert dataclasses.replace(got, l2_bandwidth=0, l3_bandwidth=0, dram_bandwidth=0) == (
        dataclasses.replace(ARCH, l2_bandwidth=0, l3_bandwidth=0, dram_bandwidth=0)
    )


def test_a_level_is_not_faster_than_the_one_before() -> None:
    got = scaled(ARCH, {"l2": FITTED["l2"], "l3": 4 * FITTED["l3"], "dram": 16 * FITTED["dram"]})
    assert got.l2_bandwidth == ARCH.l2_bandwidth < 4 * ARCH.l3_bandwidth
    assert got.l3_bandwidth == got.dram_bandwidth == got.l2_bandwidth


def test_a_machine_is_measured_once(measured) -> None:
    first = with_measured_bandwidths(ARCH)
    bandwidth._ratios.cache_clear()  # another process
    assert with_measured_bandwidths(ARCH) == first
    assert len(measured) == 1
    with_measured_bandwidths(dataclasses.replace(ARCH, mcpu="haswell"))
    assert len(measured) == 2
    assert len(json.loads(cache_file().read_text())) == 2


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": {"l2": 1}}', '{"x": 3}'])
def test_a_damaged_file_is_written_anew(measured, text) -> None:
    cache_file().parent.mkdir()
    cache_file().write_text(text)
    with_measured_bandwidths(ARCH)
    assert list(json.loads(cache_file().read_text()).values()) == [TWICE]


def test_a_cache_that_cannot_be_written_does_not_matter(measured, tmp_path) -> None:
    (tmp_path / "tvmopt").write_text("a file where the directory should be")
    assert with_measured_bandwidths(ARCH).l2_bandwidth == 2 * ARCH.l2_bandwidth


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_folder_in_its_place_is_not_read(measured, tmp_path, make) -> None:
    cache_file().parent.mkdir()
    make(cache_file())
    assert with_measured_bandwidths(ARCH).l2_bandwidth == 2 * ARCH.l2_bandwidth
    assert list(cache_file().parent.iterdir()) == [cache_file()]  # no temporary file is left


def test_only_a_cpu_that_runs_here_is_measured(measured, monkeypatch) -> None:
    spec = resolve_target("skylake-avx512", 2)
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset(spec.cpu_flags))
    assert spec.arch().l3_bandwidth == 2 * ARCH.l3_bandwidth
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset())
    assert spec.arch().l3_bandwidth == ARCH.l3_bandwidth


def test_bandwidths_with_avx2_are_a_fit(measured) -> None:
    avx2 = CpuArch("znver3", "x86_64", 2, 256, 16)
    got = with_measured_bandwidths(avx2)
    assert (got.l2_bandwidth, got.l3_bandwidth, got.dram_bandwidth) == (64, 20, 8)
    assert not measured


def test_what_is_measured_here_is_plausible() -> None:
    ratios = measure(resolve_target("host", 1).arch())
    assert set(ratios) == set(FITTED)
    assert 0 < ratios["dram"] < 1
    assert 0 < ratios["l2"] < 2
