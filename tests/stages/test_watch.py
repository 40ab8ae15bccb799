"""A stage process that exceeds its time or memory limit is killed, with its children."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from tvmopt.errors import LimitError
from tvmopt.stages.watch import Allowance, Watch, kill_tree, resident_mb

_SLEEPS = "import time; time.sleep(60)"
_EATS = "x = []\nwhile True: x.append(bytearray(10**7)); import time; time.sleep(0.02)"
_NESTED = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', {!r}])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(60)\n"
)


def _start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_hang_is_ended() -> None:
    process = _start(_SLEEPS)
    start = time.monotonic()
    with Watch(process.pid, Allowance(seconds=1.0)) as watch:
        process.wait(20)
    assert time.monotonic() - start < 10
    with pytest.raises(LimitError, match="the sleeper was stopped: it may take 1 s") as caught:
        watch.check("the sleeper")
    assert caught.value.failure_class == "timeout"


def test_what_eats_memory_is_ended() -> None:
    process = _start(_EATS)
    with Watch(process.pid, Allowance(memory_mb=200)) as watch:
        process.wait(60)
    with pytest.raises(LimitError, match="may use 200 MB of memory, but used") as caught:
        watch.check("the eater")
    assert caught.value.failure_class == "out_of_memory"


def test_children_count_and_end_with_their_parent() -> None:
    process = _start(_NESTED.format(_EATS))
    assert process.stdout is not None
    child = int(process.stdout.readline())
    with Watch(process.pid, Allowance(memory_mb=200)) as watch:
        process.wait(60)
    with pytest.raises(LimitError):
        watch.check("the family")
    end = time.monotonic() + 10
    while psutil.pid_exists(child) and time.monotonic() < end:
        if psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.05)
    assert time.monotonic() < end, "the child lives on"


def test_what_forks_share_counts_once() -> None:
    code = (
        "import os, time\n"
        "shared = b'x' * 150_000_000\n"
        "any(os.fork() == 0 for _ in range(3))\n"
        "time.sleep(3)\n"
    )
    process = _start(code)
    with Watch(process.pid, Allowance(memory_mb=400)) as watch:
        most = 0.0
        while process.poll() is None:
            most = max(most, resident_mb(process.pid))
            time.sleep(0.05)
    assert process.returncode == 0
    assert most > 600
    watch.check("the family")


def test_what_keeps_to_its_limits_is_left_alone() -> None:
    process = _start("import time; time.sleep(1.5)")
    with Watch(process.pid, Allowance(seconds=30, memory_mb=10_000)) as watch:
        assert process.wait(20) == 0
    watch.check("it")
    assert not Allowance().is_limited


def test_a_process_that_is_gone_uses_nothing() -> None:
    process = _start("pass")
    process.wait(20)
    assert resident_mb(process.pid) == 0
    kill_tree(process.pid)
