"""Tests of CPUs by name: LLVM CPU names, boards, and cloud instances."""

from __future__ import annotations

import json

import pytest

from tvmopt import host
from tvmopt.device.llvm import llvm_cpus, llvm_features
from tvmopt.device.named import NAMED, TRIPLES
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.errors import ConfigError

pytestmark = pytest.mark.skipif(host.isa() != "x86_64", reason="takes x86-64 for this machine's")


@pytest.mark.parametrize("name", NAMED)
def test_every_name_stands_for_a_cpu_that_llvm_knows(name):
    cpu = NAMED[name]
    mtriple = TRIPLES[cpu.isa]
    assert cpu.mcpu in llvm_cpus(mtriple)
    features = llvm_features(cpu.mcpu, cpu.mattr, mtriple)
    assert {m[1:] for m in cpu.mattr if m[0] == "+"} <= features
    assert not {m[1:] for m in cpu.mattr if m[0] == "-"} & features
    spec = resolve_target(name)
    assert (spec.mcpu, spec.isa, spec.mtriple) == (cpu.mcpu, cpu.isa, mtriple)
    assert spec.threads == cpu.threads or cpu.threads == 0
    assert TargetSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert spec.missing_on_host() == (cpu.isa,)


@pytest.mark.parametrize(
    ("name", "isa", "label"),
    [
        ("cortex-a76", "aarch64", "cortex-a76-3t"),
        ("graviton3", "aarch64", "neoverse-v1-3t"),
        ("hexagonv68", "hexagon", "hexagonv68-3t"),
        ("hexagon-v68", "hexagon", "hexagonv68-3t"),
        ("sifive-x280", "riscv64", "sifive-x280-3t"),
        ("haswell", "x86_64", "haswell-3t"),
    ],
)
def test_platform_follows_from_the_name(name, isa, label):
    spec = resolve_target(name, 3)
    assert (spec.isa, spec.label) == (isa, label)
    assert spec.mtriple == ("" if isa == "x86_64" else TRIPLES[isa])
    for target in (spec.to_tvm(), spec.arch().to_tvm()):
        assert str(target.attrs.get("mtriple") or isa).split("-")[0] == isa
        assert str(target.attrs["mcpu"]) == spec.mcpu
    assert spec.arch().features() == llvm_features(spec.mcpu, spec.mattr, spec.mtriple)


def test_threads_are_those_asked_for_then_those_of_the_chip_then_those_here():
    assert resolve_target("raspberry-pi-5", 2).threads == 2
    assert resolve_target("raspberry-pi-5").threads == 4
    assert resolve_target("cortex-a76").threads == host.usable_cores()


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("hexagon-v73", 1024),
        ("hexagonv73", 64),
        ('{"mcpu": "hexagonv60", "mattr": ["+hvxv60", "+hvx-length64b"]}', 512),
        ("cortex-a53", 128),
        ("graviton4", 128),
        ("riscv64-rvv", 128),
        ("spacemit-k1", 256),
        ("sifive-x280", 512),
        ("sifive-u74", 64),
    ],
)
def test_vectors_are_those_of_the_platform(name, bits):
    arch = resolve_target(name).arch()
    assert (arch.simd_bits, arch.vector_registers) == (bits, 32)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("raspberry-pi-4", {"asimd", "crc32", "fp"}),
        ("riscv64-rvv", {*"imafdcv"}),
        ('{"mcpu": "generic-rv64", "mattr": ["+zve32x"]}', {"i", "zve32x", "zvl32b"}),
        ('{"mcpu": "hexagonv5"}', {"v5"}),
    ],
)
def test_required_features(name, flags):
    assert set(resolve_target(name).cpu_flags) >= flags
    if "zve32x" not in name:
        assert set(resolve_target(name).cpu_flags) == flags


def test_longer_vectors_than_v_promises_are_required():
    assert "zvl256b" in resolve_target("spacemit-k1").cpu_flags
    assert not {"zvl128b", "zve64d"} & set(resolve_target("spacemit-k1").cpu_flags)


def test_features_are_added_to_those_of_the_name():
    spec = resolve_target('{"mcpu": "raspberry-pi-5", "mattr": ["+i8mm"]}')
    assert (spec.mcpu, spec.mattr) == ("cortex-a76", ("+i8mm",))
    assert {"i8mm", "asimddp"} <= set(spec.cpu_flags)
    assert resolve_target('{"mcpu": "hexagon-v68", "mattr": ["+hvx-qfloat"]}').mattr == (
        *NAMED["hexagon-v68"].mattr, "+hvx-qfloat",
    )  # fmt: skip


def test_platform_may_be_named():
    spec = resolve_target('{"mcpu": "apple-m4", "mtriple": "arm64-apple-darwin"}')
    assert (spec.isa, spec.mtriple) == ("aarch64", "arm64-apple-darwin")
    generic = resolve_target('{"mcpu": "generic", "mtriple": "aarch64-linux-gnu"}')
    assert (generic.isa, generic.mcpu) == ("aarch64", "generic")
    assert resolve_target("generic").isa == "x86_64"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cortex-a7", "did you mean .*cortex-a7"),
        ("graviton9", "did you mean graviton"),
        ("hexagon68", "did you mean hexagonv68"),
        ("rasberry-pi-5", "did you mean raspberry-pi-5"),
        ('{"mcpu": "haswell", "mtriple": "aarch64-linux-gnu"}', "got 'haswell'$"),
        ('{"mcpu": "graviton3", "mtriple": "hexagon"}', "got 'graviton3'"),
        ('{"mcpu": "generic", "mtriple": "ppc64le-linux-gnu"}',
         "mtriple must begin with x86_64, aarch64.* but got 'ppc64le-linux-gnu'"),
        ('{"mcpu": "generic", "mtriple": 7}', "mtriple must begin with .* but got 7"),
        ('{"mcpu": "cortex-a76", "mattr": ["+avx2"]}', "features that LLVM knows.* got 'avx2'"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_in_the_message(text, message):
    with pytest.raises(ConfigError, match=message):
        resolve_target(text)


def test_old_dictionaries_have_no_platform():
    old = resolve_target("haswell", 2).to_dict()
    assert "mtriple" not in old
    assert TargetSpec.from_dict(old).mtriple == ""
    assert resolve_target("cortex-a76").to_dict()["mtriple"] == "aarch64-linux-gnu"


def test_this_machines_kind_needs_no_platform(monkeypatch):
    monkeypatch.setattr(host, "isa", lambda: "aarch64")
    assert resolve_target('{"mcpu": "haswell", "mtriple": "x86_64-linux-gnu"}').isa == "x86_64"
    with pytest.raises(ConfigError, match="ppc"):
        resolve_target('{"mcpu": "generic", "mtriple": "ppc"}')
