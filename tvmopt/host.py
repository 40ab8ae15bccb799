"""Facts about the machine this process runs on, from the operating system alone.

The runtime uses this page to refuse a library that was built for another CPU, so it must import
nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

#: Most threads that a model is compiled for: more than any machine has cores.
MOST_THREADS = 4096
_CPUINFO = Path("/proc/cpuinfo")
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of x86-64
_REQUEST_AMX = (158, 0x1023, 18)


@functools.cache
def isa() -> str:
    """Instruction-set family: ``"x86_64"``, ``"aarch64"``, ..."""
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


@functools.cache
def cpu_flags() -> frozenset[str]:
    """CPU features as Linux names them in /proc/cpuinfo; empty where that page does not exist."""
    if not _CPUINFO.exists():
        return frozenset()
    text = _CPUINFO.read_text(errors="replace")
    riscv = re.search(r"^isa\s*:\s*rv\d+([a-z]+)(\S*)$", text, re.MULTILINE)
    if riscv:  # single letters, then names: rv64imafdcv_zba_zbb
        return frozenset([*riscv.group(1), *riscv.group(2).split("_")]) - {""}
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


def request_amx(flags: Iterable[str]) -> bool:
    """Ask Linux for Intel AMX's tile registers before code that may use them is run.

    Linux gives them to no process unasked, since they make what a thread keeps larger; once is
    enough for all threads and children.

    Args:
        flags: Features that the code may use, in Linux's names; without ``"amx_tile"`` nothing is
            asked for.

    Returns:
        Whether the code may run: False when Linux refused, or the CPU has no AMX.
    """
    return "amx_tile" not in flags or _amx_permission()


@functools.cache
def _amx_permission() -> bool:
    return "amx_tile" in cpu_flags() and _syscall(*_REQUEST_AMX) == 0


def _syscall(*arguments: int) -> int:
    """A system call by its number; -1 when it fails."""
    import ctypes  # takes a while, and few need it

    return int(ctypes.CDLL(None).syscall(*arguments))


@functools.cache
def cpu_model() -> str:
    """Marketing name of the CPU, or the instruction-set family where there is none."""
    if _CPUINFO.exists():
        text = _CPUINFO.read_text(errors="replace")
        found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
        if found:
            return found.group(1).strip()
    return platform.processor() or isa()


@functools.cache
def usable_cores() -> int:
    """Cores that this process may run on: its affinity, further cut by a cgroup v2 CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        limit, _, period = quota.read_text().strip().partition(" ")
        if limit.isdigit() and period.isdigit():
            cores = min(cores or 1, max(1, int(limit) // int(period)))
    return cores or 1


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables for TVM's thread pool of ``threads``, to be set before it starts.

    By default TVM assumes hyper-threading and uses half of the logical CPUs. It binds its workers
    to the first cores of the machine; where this process is bound to some cores, several such
    processes would share these, so workers are not bound there.
    """
    found = {"TVM_NUM_THREADS": str(threads)}
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) < (os.cpu_count() or 1):
        found["TVM_BIND_THREADS"] = "0"
    return found


@functools.cache
def cache_bytes() -> dict[str, int]:
    """Sizes in bytes of the caches that core 0 sees: keys ``l1``, ``l2``, ``l3`` where known."""
    sizes: dict[str, int] = {}
    for index in sorted(_CACHES.glob("index*")):
        try:
            level = (index / "level").read_text().strip()
            kind = (index / "type").read_text().strip()
            size = (index / "size").read_text().strip()
        except OSError:
            continue
        scale = {"K": 1024, "M": 1024**2, "G": 1024**3}.get(size[-1:], 1)
        if kind != "Instruction" and size.rstrip("KMG").isdigit():
            sizes[f"l{level}"] = int(size.rstrip("KMG")) * scale
    return sizes


@functools.cache
def memory_bytes() -> int:
    """Memory that this process may use: the machine's, further cut by its control groups."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([memory, *cgroup_memory_limits(_CGROUPS, _OWN_CGROUPS)])


def cgroup_memory_limits(mounted: Path, own: Path) -> list[int]:
    """Limits in bytes of the control groups of a process and of all groups around them.

    Args:
        mounted: Where the groups are: ``/sys/fs/cgroup``.
        own: Which groups are its own: ``/proc/self/cgroup``. Lines are ``0::/a/b`` in version 2,
            ``4:memory:/a/b`` in version 1.
    """
    lines = own.read_text().splitlines() if own.exists() else []
    limits = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not number.isdigit():
            continue
        if controllers == "":
            root, name = mounted, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = mounted / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        # In a container the path may be that of the machine, which is not there.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                break
            with contextlib.suppress(OSError):
                text = (folder / name).read_text().strip()
                limits += [int(text)] if text.isdigit() else []
    return limits


@functools.cache
def fingerprint() -> str:
    """Short digest of what makes a timing on this machine comparable: CPU, features, cores."""
    facts = "|".join([isa(), cpu_model(), str(usable_cores()), *sorted(cpu_flags())])
    return hashlib.sha256(facts.encode()).hexdigest()[:12]


def boot_id() -> str:
    """Identity of this boot; with a process id it names one process for good."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else platform.node()


def process_start(pid: int) -> str | None:
    """Start time of process ``pid`` in clock ticks since boot; None when no such process lives."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]
