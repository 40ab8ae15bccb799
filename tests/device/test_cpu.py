"""Tests of CPU descriptors and of the Linux names of CPU features."""

from __future__ import annotations

import pytest

from tvmopt.device.cpu import CpuArch
from tvmopt.device.features import required_cpu_flags


@pytest.mark.parametrize(
    ("dtype", "lanes"),
    [
        ("int8", 64), ("uint8", 64), ("float16", 32), ("bfloat16", 32), ("int16", 32),
        ("float32", 16), ("int32", 16), ("bool", 16), ("float64", 8), ("int64", 8), ("uint64", 8),
    ],
)  # fmt: skip
def test_lanes_of_512_bits(dtype, lanes):
    assert CpuArch("sapphirerapids", "x86_64", 2, 512, 32).lanes(dtype) == lanes


def test_lanes_are_never_0():
    assert CpuArch("tiny", "riscv64", 1, 32, 32).lanes("float64") == 1


def test_x86_features_get_their_linux_names():
    llvm = ["avx2", "sse3", "sse4.1", "lzcnt", "bmi", "bmi2", "avx512vnni", "avxvnniint8"]
    assert required_cpu_flags("x86_64", llvm) == (
        "abm", "avx2", "avx512_vnni", "avx_vnni_int8", "bmi1", "bmi2", "pni", "sse4_1",
    )  # fmt: skip


def test_amx_features_get_their_linux_names():
    llvm = ["amx-tile", "amx-int8", "amx-bf16"]
    assert required_cpu_flags("x86_64", llvm) == ("amx_bf16", "amx_int8", "amx_tile")


def test_hints_and_privileged_features_do_not_matter():
    hints = ["fast-gather", "prefer-256-bit", "64bit", "cx16", "fsgsbase", "macrofusion", "xsave"]
    assert required_cpu_flags("x86_64", hints) == ()


def test_arm_features_get_their_linux_names():
    llvm = ["neon", "dotprod", "fullfp16", "i8mm", "sve2", "v8.2a", "lse", "alternate-sextload"]
    assert required_cpu_flags("aarch64", llvm) == (
        "asimd", "asimddp", "asimdhp", "atomics", "i8mm", "sve2",
    )  # fmt: skip


def test_unknown_instruction_set_requires_nothing():
    assert required_cpu_flags("s390x", ["v", "zfh"]) == ()
