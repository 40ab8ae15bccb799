"""Tests of the worker processes: isolation, environment, timeouts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tvmopt.host import usable_cores
from tvmopt.measure.workers import Job, WorkerPool, worker_environment


def call(function: str, timeout_s: float = 30.0, **arguments) -> Job:
    return Job(function, arguments, timeout_s)


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    monkeypatch.setenv("MLFLOW_RUN_ID", "a-run")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    with WorkerPool(count=1, threads=1, scratch=tmp_path, name="test") as pool:
        yield pool


def test_a_worker_outlives_what_a_job_does_to_it(pool: WorkerPool) -> None:
    threads, run_id, first_pid = pool.run(
        [
            call("tvm.runtime:num_threads"),
            call("os:getenv", key="MLFLOW_RUN_ID"),
            call("os:getpid"),
        ]
    )
    assert threads.value == 1
    assert run_id.value is None

    started = time.monotonic()
    crashed, raised, unsendable, late, after = pool.run(
        [
            call("os:abort"),
            call("os:listdir", path="/nowhere"),
            call("os:fsencode", filename="bytes are not JSON"),
            call("signal:pause", timeout_s=0.5),
            call("os:getpid"),
        ]
    )
    assert crashed.error == "worker crashed: SIGABRT"
    assert raised.error is not None
    assert raised.error.startswith("FileNotFoundError: ")
    assert unsendable.error is not None
    assert unsendable.error.startswith("TypeError: ")
    assert late.error == "timeout after 0.5 s"
    assert after.error is None
    assert after.value != first_pid.value
    assert time.monotonic() - started < 25


@pytest.mark.skipif(usable_cores() < 2, reason="TVM caps the threads at the cores there are")
def test_kernels_get_the_threads_that_were_asked_for(tmp_path: Path) -> None:
    with WorkerPool(count=1, threads=2, scratch=tmp_path, name="test") as pool:
        [outcome] = pool.run([call("tvm.runtime:num_threads")])
    assert outcome.value == 2


def test_outcomes_keep_the_order_of_jobs(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d", "e"]
    with WorkerPool(count=2, threads=1, scratch=tmp_path, name="test") as pool:
        outcomes = pool.run([call("os:fspath", path=name) for name in names])
        assert [outcome.value for outcome in outcomes] == names
        assert pool.run([call("os:getpid")] * 3, stop=lambda: True) == []


def test_environment_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "a-run")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "somewhere")
    env = worker_environment(5, tmp_path)
    assert env["TVM_NUM_THREADS"] == "5"
    assert env["TMPDIR"] == str(tmp_path)
    assert not [name for name in env if name.startswith("MLFLOW_")]


def test_importing_the_package_is_cheap() -> None:
    heavy = ("sklearn", "matplotlib", "mlflow", "optuna", "tvm.s_tir.tensor_intrin")
    code = f"import sys, tvmopt.tune; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found.strip() == "[]"


@pytest.mark.parametrize("flags", [{"avx2", "amx_tile"}, {"avx2"}])
def test_a_worker_asks_for_amx_where_the_cpu_has_it(flags: set[str], tmp_path: Path) -> None:
    code = (
        "import sys; from tvmopt import host; from tvmopt.measure import worker\n"
        f"host.cpu_flags = lambda: frozenset({sorted(flags)})\n"
        "host._syscall = lambda *number: print('asked', *number, file=sys.stderr) or 0\n"
        "worker.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=worker_environment(1, tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == '{"value": "ready"}\n'
    assert done.stderr == ("asked 158 4131 18\n" if "amx_tile" in flags else "")
