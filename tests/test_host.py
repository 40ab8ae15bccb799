"""Tests of the facts that the operating system reports of this machine."""

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
    assert host.process_start(child.pid) is None  # a zombie counts as dead
    child.communicate()
    assert host.process_start(child.pid) is None


def test_boot_id_is_stable():
    assert host.boot_id() == host.boot_id() != ""


def test_memory_is_cut_by_the_cgroups_limit(monkeypatch, tmp_path):
    limit, own = tmp_path / "memory.max", tmp_path / "own"
    own.write_text("0::/\n")
    monkeypatch.setattr(host, "_CGROUPS", tmp_path)
    monkeypatch.setattr(host, "_OWN_CGROUPS", own)
    whole = host.memory_bytes.__wrapped__()
    assert whole > 2**28
    for text, expected in (("max\n", whole), ("1000000\n", 1_000_000), (f"{2**60}\n", whole)):
        limit.write_text(text)
        assert host.memory_bytes.__wrapped__() == expected


@pytest.mark.parametrize(
    ("own", "files", "limits"),
    [
        ("0::/a/b\n", {"a/memory.max": "700", "a/b/memory.max": "max"}, [700]),
        ("0::/a/b\n", {"a/memory.max": "700", "a/b/memory.max": "900", "memory.max": "800"},
         [900, 700, 800]),
        ("0::/not/here\n", {"memory.max": "500"}, [500]),
        ("5:cpu:/x\n4:memory,hugetlb:/a\n", {"memory/a/memory.limit_in_bytes": "300"}, [300]),
        ("4:memory:/far/away\n", {"memory/memory.limit_in_bytes": "200"}, [200]),
        ("nonsense\n", {"memory.max": "500"}, []),
        ("", {}, []),
    ],
)  # fmt: skip
def test_limits_of_all_groups_around_count(tmp_path, own, files, limits):
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert host.cgroup_memory_limits(tmp_path / "cgroup", tmp_path / "own") == limits


@pytest.fixture
def asks_linux(monkeypatch):
    """Fake a CPU with these features under a Linux with this answer; return its system calls."""
    asked = []

    def pretend(flags, answer):
        def syscall(*arguments):
            asked.append(arguments)
            return answer

        monkeypatch.setattr(host, "cpu_flags", lambda: frozenset(flags))
        monkeypatch.setattr(host, "_syscall", syscall)
        return asked

    host._amx_permission.cache_clear()
    yield pretend
    host._amx_permission.cache_clear()


def test_amx_is_asked_for_once(asks_linux):
    asked = asks_linux({"avx2", "amx_tile", "amx_int8"}, 0)
    assert host.request_amx(["avx2"]) and asked == []
    assert host.request_amx(["avx2", "amx_tile"]) and host.request_amx(("amx_tile",))
    assert asked == [(158, 0x1023, 18)]


def test_amx_that_linux_refuses(asks_linux):
    asked = asks_linux({"amx_tile"}, -1)
    assert not host.request_amx(["amx_tile"]) and not host.request_amx(["amx_tile"])
    assert len(asked) == 1
    assert host.request_amx(["avx2"])


def test_a_cpu_without_amx_is_not_asked(asks_linux):
    asked = asks_linux({"avx2"}, 0)
    assert not host.request_amx(["amx_tile"])
    assert asked == []


@pytest.mark.skipif(host.isa() != "x86_64", reason="the number is x86-64's")
def test_the_question_is_one_that_linux_answers():
    granted = host._syscall(*host._REQUEST_AMX) == 0
    assert granted == ("amx_tile" in host.cpu_flags())
    assert host._syscall(39) == os.getpid()  # arguments and result are passed on


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [(8, {"TVM_NUM_THREADS": "3"}), (2, {"TVM_NUM_THREADS": "3", "TVM_BIND_THREADS": "0"})],
)
def test_workers_are_not_bound_to_cores_where_the_process_is(monkeypatch, allowed, expected):
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: set(range(allowed)))
    monkeypatch.setattr(host.os, "cpu_count", lambda: 8)
    assert host.thread_environment(3) == expected
