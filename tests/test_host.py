"""What the operating system says of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvmopt import host

CPUINFO = """processor\t: 0
model name\t: Some CPU @ 3.00GHz
flags\t\t: fpu sse avx2 avx512f
processor\t: 1
model name\t: Other CPU
"""


@pytest.fixture
def cpuinfo(monkeypatch, tmp_path):
    def write(text):
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(host, "_CPUINFO", tmp_path / "cpuinfo")

    return write


def test_flags_and_name_of_x86(cpuinfo):
    cpuinfo(CPUINFO)
    assert host.cpu_flags.__wrapped__() == {"fpu", "sse", "avx2", "avx512f"}
    assert host.cpu_model.__wrapped__() == "Some CPU @ 3.00GHz"


def test_flags_of_arm(cpuinfo):
    cpuinfo("processor : 0\nFeatures\t: fp asimd asimddp\nCPU part : 0xd0c\n")
    assert host.cpu_flags.__wrapped__() == {"fp", "asimd", "asimddp"}


def test_flags_of_riscv(cpuinfo):
    cpuinfo("processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdcv_zicbom_zba\nmmu\t\t: sv39\n")
    assert host.cpu_flags.__wrapped__() == {*"imafdcv", "zicbom", "zba"}


def test_no_cpuinfo(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "_CPUINFO", tmp_path / "none")
    assert host.cpu_flags.__wrapped__() == frozenset()
    assert host.cpu_model.__wrapped__()


@pytest.mark.parametrize(("machine", "isa"), [("AMD64", "x86_64"), ("arm64", "aarch64")])
def test_isa_has_one_name(monkeypatch, machine, isa):
    monkeypatch.setattr(host.platform, "machine", lambda: machine)
    assert host.isa.__wrapped__() == isa


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 6), ("250000 100000", 2), ("50000 100000", 1)]
)
def test_cores_are_cut_by_affinity_and_quota(monkeypatch, tmp_path, quota, cores):
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(host, "Path", lambda path: tmp_path / Path(path).name)
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: set(range(6)))
    assert host.usable_cores.__wrapped__() == cores


def test_cache_sizes(monkeypatch, tmp_path):
    caches = [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K")]
    for index, (level, kind, size) in enumerate([*caches, (3, "Unified", "1M")]):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(host, "_CACHES", tmp_path)
    assert host.cache_bytes.__wrapped__() == {"l1": 48 * 2**10, "l2": 2 * 2**20, "l3": 2**20}


def test_fingerprint_tells_machines_apart(monkeypatch):
    before = host.fingerprint.__wrapped__()
    assert before == host.fingerprint()
    for name, value in (
        ("cpu_model", "another"),
        ("usable_cores", 999),
        ("cpu_flags", frozenset({"other"})),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(host, name, lambda value=value: value)
            assert host.fingerprint.__wrapped__() != before


def test_a_process_has_a_start_time_while_it_lives():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        start = host.process_start(child.pid)
        assert start == host.process_start(child.pid)
        assert int(start) >= int(host.process_start(os.getpid()))
    finally:
        child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert host.process_start(child.pid) is None  # a zombie is no live process
    child.communicate()
    assert host.process_start(child.pid) is None


def test_boot_id_is_stable():
    assert host.boot_id() == host.boot_id() != ""


def test_memory_is_cut_by_the_cgroups_limit(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(host, "_MEMORY_LIMIT", limit)
    whole = host.memory_bytes.__wrapped__()
    assert whole > 2**28
    for text, expected in (("max\n", whole), ("1000000\n", 1_000_000), (f"{2**60}\n", whole)):
        limit.write_text(text)
        assert host.memory_bytes.__wrapped__() == expected
