"""Tests of target resolution: user input becomes one exact target."""

from __future__ import annotations

import os

import pytest

from tvmopt import host
from tvmopt.device.target import TargetSpec, resolve_target, set_thread_environment
from tvmopt.errors import ConfigError

x86_only = pytest.mark.skipif(host.isa() != "x86_64", reason="names CPUs of x86-64")
pytestmark = x86_only

HASWELL = {
    "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "pni", "popcnt", "sse", "sse2",
    "sse4_1", "sse4_2", "ssse3",
}  # fmt: skip


@pytest.mark.parametrize("text", ["host", "", " host ", "auto", "cpu"])
def test_host_uses_only_what_this_machine_has(text):
    spec = resolve_target(text)
    assert set(spec.cpu_flags) <= host.cpu_flags()
    assert spec.missing_on_host() == ()
    assert spec.isa == host.isa()
    assert spec.threads == host.usable_cores()


@pytest.mark.parametrize(
    ("extra", "mcpu"),
    [
        (set(), "haswell"),
        ({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "aes"}, "skylake-avx512"),
    ],
)
def test_host_is_the_newest_cpu_whose_every_feature_is_there(monkeypatch, extra, mcpu):
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset(HASWELL | extra))
    assert resolve_target("host").mcpu == mcpu


def test_one_missing_feature_rules_a_cpu_out(monkeypatch):
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset(HASWELL - {"fma"}))
    assert resolve_target("host").mcpu == "nehalem"


def test_named_cpu():
    spec = resolve_target("haswell", 3)
    assert (spec.mcpu, spec.isa, spec.threads, spec.mattr) == ("haswell", "x86_64", 3, ())
    assert set(spec.cpu_flags) == HASWELL
    assert spec.label == "haswell-3t"


def test_json_with_features_and_cores():
    spec = resolve_target('{"mcpu": "haswell", "mattr": ["-avx2", "+avxvnni"], "num-cores": 5}')
    assert spec.threads == 5
    assert spec.mattr == ("-avx2", "+avxvnni")
    assert "avx2" not in spec.cpu_flags
    assert "avx_vnni" in spec.cpu_flags


def test_added_feature_brings_what_it_implies():
    flags = resolve_target('{"mcpu": "x86-64", "mattr": ["+avx512vnni"]}').cpu_flags
    assert {"avx512_vnni", "avx512f", "avx2"} <= set(flags)


def test_threads_argument_outranks_num_cores():
    assert resolve_target('{"mcpu": "haswell", "num-cores": 5}', 2).threads == 2
    assert resolve_target('{"mcpu": "haswell"}').threads == host.usable_cores()


@pytest.mark.parametrize(
    ("text", "close"), [("skylake-avx51", "skylake-avx512"), ("znver9", "znver5")]
)
def test_misspelt_cpu_gets_suggestions(text, close):
    with pytest.raises(ConfigError, match=f"but got '{text}'; did you mean .*{close}"):
        resolve_target(text)


def test_name_like_nothing_gets_no_suggestion():
    with pytest.raises(ConfigError, match=r"must be 'host', an LLVM CPU name.*got 'qqqqqq'$"):
        resolve_target("qqqqqq")


@pytest.mark.parametrize("text", ["nvidia/tesla-k80", "rocm", "cuda,arch=sm_90", "cuda-12"])
def test_an_unknown_gpu_is_refused(text):
    with pytest.raises(ConfigError, match=r"GPUs known here are .*nvidia-h200"):
        resolve_target(text)


def test_target_strings_of_old_are_explained():
    with pytest.raises(ConfigError, match="give the value of -mcpu alone"):
        resolve_target("llvm -mcpu=skylake-avx512")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{mcpu: haswell}", "or a JSON object, but got"),
        ("{}", "mcpu is needed"),
        ('{"mcpu": 5}', "mcpu is needed"),
        ('{"mcpu": "haswell", "kind": "cuda"}', "keys kind='llvm'"),
        ('{"mcpu": "haswell", "colour": 1}', "keys kind='llvm'"),
        ('{"mcpu": "haswel"}', "did you mean haswell"),
        ('{"mcpu": "haswell", "mattr": "+avx2"}', r"list like \['\+avx2'\], but got '\+avx2'"),
        ('{"mcpu": "haswell", "mattr": ["avx2"]}', "mattr must be a list like"),
        ('{"mcpu": "haswell", "mattr": [1]}', "mattr must be a list like"),
        ('{"mcpu": "haswell", "mattr": ["+avx99"]}', "features that LLVM knows.* got 'avx99'"),
        ('{"mcpu": "haswell", "mattr": ["-avx99"]}', "features that LLVM knows.* got 'avx99'"),
        ('{"mcpu": "haswell", "num-cores": "two"}', "num-cores must be .* got 'two'"),
        ('{"mcpu": "haswell", "num-cores": -1}', "num-cores must be .* got -1"),
        ('{"mcpu": "haswell", "num-cores": 2.5}', "num-cores must be .* got 2.5"),
    ],
)
def test_bad_json(text, message):
    with pytest.raises(ConfigError, match=message):
        resolve_target(text)


@pytest.mark.parametrize("threads", [-2, 4097, 999_999_999, 10**38])
def test_threads_that_no_machine_has(threads):
    with pytest.raises(ConfigError, match=f"threads must be 0 to 4096, but got {threads}"):
        resolve_target("haswell", threads)


def test_dict_form_round_trips_through_json():
    import json

    spec = resolve_target('{"mcpu": "haswell", "mattr": ["-avx2"]}', 4)
    assert TargetSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_tvm_target_names_cpu_features_and_cores():
    target = resolve_target('{"mcpu": "haswell", "mattr": ["-avx2"]}', 4).to_tvm()
    assert str(target.kind.name) == "llvm"
    assert str(target.attrs["mcpu"]) == "haswell"
    assert list(target.attrs["mattr"]) == ["-avx2"]
    assert int(target.attrs["num-cores"]) == 4


def test_missing_features_are_named_as_linux_names_them(monkeypatch):
    spec = resolve_target("cascadelake")
    have = frozenset(spec.cpu_flags) - {"avx512_vnni", "fma"}
    monkeypatch.setattr(host, "cpu_flags", lambda: have)
    assert spec.missing_on_host() == ("avx512_vnni", "fma")


def test_other_instruction_set_is_missing_as_a_whole(monkeypatch):
    spec = resolve_target("haswell")
    monkeypatch.setattr(host, "isa", lambda: "aarch64")
    assert spec.missing_on_host() == ("x86_64",)


@pytest.mark.parametrize(
    ("mcpu", "bits", "registers"),
    [("sapphirerapids", 512, 32), ("haswell", 256, 16), ("nehalem", 128, 16)],
)
def test_vectors_follow_the_features(mcpu, bits, registers):
    arch = resolve_target(mcpu, 3).arch()
    assert (arch.simd_bits, arch.vector_registers, arch.cores) == (bits, registers, 3)


def test_cache_sizes_are_the_hosts_only_when_it_runs_here(monkeypatch):
    sizes = {"l1": 1, "l2": 2, "l3": 3, "l4": 4}  # some hosts have a fourth cache level
    monkeypatch.setattr(host, "cache_bytes", lambda: sizes)
    spec = resolve_target("host")
    arch = spec.arch()
    assert (arch.l1_bytes, arch.l2_bytes, arch.l3_bytes) == (1, 2, 3)
    monkeypatch.setattr(host, "cpu_flags", frozenset)
    assert spec.arch().l1_bytes == 32 * 1024


def test_thread_environment(monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "7")
    set_thread_environment(3)
    assert os.environ["TVM_NUM_THREADS"] == "3"
