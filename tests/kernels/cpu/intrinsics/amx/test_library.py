"""Tests of compiled AMX libraries: machine code, tile configuration, CPUs without AMX."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import tvm_ffi

from tests.kernels.cpu.intrinsics.amx.kernels import (
    FEATURES,
    NATIVE,
    U8S8,
    build,
    dense,
    on_x86_64,
    shaped,
)
from tvmopt.device.features import required_cpu_flags
from tvmopt.device.target import resolve_target
from tvmopt.errors import ArtifactError
from tvmopt.kernels.cpu.intrinsics.amx import configuration
from tvmopt.runtime import load

pytestmark = on_x86_64


@pytest.fixture(scope="module")
def exported(target, tmp_path_factory):
    """Export a kernel as a shared library."""
    path = tmp_path_factory.mktemp("amx") / "kernel.so"
    build(dense(shaped(U8S8, rows=14, kbytes=24), 28, 64, 48), target).export_library(str(path))
    return path


def test_disassembly(exported):
    done = subprocess.run(["objdump", "-d", str(exported)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = re.findall(r"\t((?:ld|st)?tile\w+|tdp\w+)\s*(\S*)", done.stdout)
    products = [registers for name, registers in seen if name == "tdpbusd"]
    assert len(products) >= 4 and {name for name, _ in seen} == {
        "ldtilecfg", "tilezero", "tileloadd", "tdpbusd", "tilestored", "tilerelease"
    }  # fmt: skip
    # Registers have the configured shapes, which differ between tiles.
    assert set(products) == {
        "%tmm6,%tmm4,%tmm0", "%tmm7,%tmm4,%tmm1", "%tmm6,%tmm5,%tmm2", "%tmm7,%tmm5,%tmm3"
    }  # fmt: skip


def test_sums_need_no_memory_of_their_own(target):
    text = build(dense(U8S8, 64, 64, 128), target).inspect_source("asm")
    assert "TVMBackendAllocWorkspace" not in text
    assert [int(n) for n in re.findall(r"subq\s+\$(\d+), %rsp", text) if int(n) > 1024] == []


def test_every_byte_of_the_configuration_arrives(exported):
    assert configuration(14, 24) in exported.read_bytes()


def test_configuration_is_what_intel_says():
    data = configuration(7, 40)
    assert len(data) == 64 and data[0] == 1 and not any(data[1:16])
    assert list(data[16:32:2]) == [64, 64, 64, 64, 40, 40, 64, 64] and not any(data[17:32:2])
    assert list(data[48:56]) == [7] * 6 + [10] * 2
    assert not any(data[32:48]) and not any(data[56:])


_CHILD = """
import sys, numpy as np, tvm
lib = tvm.runtime.load_module(sys.argv[1])
shapes = [((28, 48), "uint8"), ((4, 12, 16, 4), "int8"), ((28, 64), "int32")]
tensors = [tvm.runtime.tensor(np.zeros(*s)) for s in shapes]
print("loaded", flush=True)
lib["main"](*tensors)
print("ran")
"""


def test_without_permission_and_emulator_it_dies(exported):
    command = [sys.executable, "-c", _CHILD, str(exported)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-4, "loaded\n")  # SIGILL


@pytest.mark.skipif(NATIVE, reason="this CPU has AMX")
def test_the_runtime_refuses_it_first(exported, tmp_path, monkeypatch, write_kernel_bundle):
    (tmp_path / "model.so").write_bytes(exported.read_bytes())
    flags = required_cpu_flags("x86_64", ("amx-tile", "amx-int8", "avx2"))
    target = resolve_target("host", 1).to_dict()
    target |= {"mattr": list(FEATURES), "cpu_flags": list(flags)}
    write_kernel_bundle(tmp_path, target, ("tdpbusd",))
    monkeypatch.setattr(tvm_ffi, "load_module", lambda path: pytest.fail("it was opened"))
    with pytest.raises(ArtifactError, match=r"this CPU \(.*\) lacks amx_int8, amx_tile; build it"):
        load(tmp_path)
