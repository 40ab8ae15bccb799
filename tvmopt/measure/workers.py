"""Worker processes that build and run candidates in isolation from the search.

A candidate may crash, hang, or corrupt TVM's thread pool. We use our own workers instead of TVM's
LocalBuilder and LocalRunner for four reasons:

1. We set the worker's environment. TVM's thread pool uses half the CPUs by default, and the
   parent's tracking run must not leak into a child.
2. A worker is reused between batches.
3. A worker that hangs is killed from outside.
4. Nothing imports ``tvm.s_tir.tensor_intrin``, which takes 17 to 25 seconds in every process.

Requests and answers are one JSON object per line. :mod:`tvmopt.measure.worker` is the other end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import tvmopt
from tvmopt import host
from tvmopt.errors import TuneError

_START_TIMEOUT_S = 120.0
# TVM's code generation leaks some memory per module, so workers are replaced.
_JOBS_PER_WORKER = 256
_WORKER_COMMAND = (sys.executable, "-m", "tvmopt.measure.worker")


@dataclasses.dataclass(frozen=True)
class Job:
    """One function call in a worker.

    Attributes:
        function: ``"module:function"``, for instance from :mod:`tvmopt.measure.jobs`.
        arguments: Keyword arguments; JSON-serialisable.
        timeout_s: Seconds after which the worker is killed.
    """

    function: str
    arguments: dict[str, Any]
    timeout_s: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of a job: ``value`` when it returned, otherwise ``error`` (one line)."""

    value: Any = None
    error: str | None = None


class WorkerPool:
    """Pool of up to ``count`` worker processes, started on demand.

    Args:
        count: Maximum number of workers.
        threads: Kernel threads of each worker (``TVM_NUM_THREADS``).
        scratch: Directory for the workers' temporary files and their log.
        name: Name of the log file.
    """

    def __init__(self, count: int, threads: int, scratch: Path, name: str) -> None:
        self._count = count
        self._scratch = scratch
        self._log = scratch / f"{name}.log"
        self._env = worker_environment(threads, scratch)
        self._workers: list[_Worker] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every worker."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def run(self, jobs: Sequence[Job], stop: Callable[[], bool] = lambda: False) -> list[Outcome]:
        """Run jobs on all workers.

        Args:
            jobs: Jobs to run.
            stop: Polled before each start; once true, no further job starts.

        Returns:
            Outcomes in the order of ``jobs``; fewer when stopped, since jobs start in order.
        """
        outcomes = dict(self._run_as_completed(jobs, stop))
        return [outcomes[index] for index in sorted(outcomes)]

    def _run_as_completed(
        self, jobs: Sequence[Job], stop: Callable[[], bool]
    ) -> Iterator[tuple[int, Outcome]]:
        waiting = deque(enumerate(jobs))
        busy: dict[_Worker, tuple[int, float]] = {}
        with selectors.DefaultSelector() as selector:
            while waiting or busy:
                if waiting and stop():
                    waiting.clear()
                    continue
                for worker in self._idle(busy, len(waiting)):
                    index, job = waiting.popleft()
                    if not worker.send(job):
                        yield index, Outcome(error=worker.death())
                        continue
                    busy[worker] = (index, time.monotonic() + job.timeout_s)
                    selector.register(worker.answers, selectors.EVENT_READ, worker)
                if not busy:
                    continue
                wait = min(limit for _, limit in busy.values()) - time.monotonic()
                ready = {key.data for key, _ in selector.select(max(0.0, wait))}
                now = time.monotonic()
                for worker in list(busy):
                    index, limit = busy[worker]
                    if worker in ready:
                        outcome = worker.receive()
                    elif now >= limit:
                        outcome = Outcome(error=f"timeout after {jobs[index].timeout_s:g} s")
                    else:
                        continue
                    del busy[worker]
                    selector.unregister(worker.answers)
                    if worker not in ready:
                        worker.kill()
                    yield index, outcome

    def _idle(self, busy: dict[_Worker, tuple[int, float]], wanted: int) -> list[_Worker]:
        """Return up to ``wanted`` idle workers; start new ones if needed."""
        for worker in self._workers:
            if worker not in busy and worker.jobs >= _JOBS_PER_WORKER:
                worker.kill()
        self._workers = [worker for worker in self._workers if worker.alive]
        idle = [worker for worker in self._workers if worker not in busy]
        missing = min(wanted - len(idle), self._count - len(self._workers))
        started = [_Worker(self._env, self._scratch, self._log) for _ in range(max(0, missing))]
        self._workers += started
        for worker in started:
            worker.wait_ready()
        return (idle + started)[:wanted]


def worker_environment(threads: int, scratch: Path) -> dict[str, str]:
    """Return a worker's environment: ours without MLflow variables, with its own thread count."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    package_root = str(Path(tvmopt.__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, env.get("PYTHONPATH")]))
    env |= host.thread_environment(threads)
    env["TMPDIR"] = str(scratch)
    return env


class _Worker:
    """One child process with its request and answer pipes."""

    def __init__(self, env: dict[str, str], scratch: Path, log: Path) -> None:
        self._log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                _WORKER_COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=env,
                cwd=scratch,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests: IO[bytes] = self._process.stdin
        self.answers: IO[bytes] = self._process.stdout
        self.alive = True
        self.jobs = 0

    def wait_ready(self) -> None:
        """Wait until the child has imported TVM, so that no job's time includes the import."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.answers, selectors.EVENT_READ)
            ready = selector.select(_START_TIMEOUT_S)
        if not ready or not self.answers.readline():
            self.kill()
            raise TuneError(
                f"a worker process must start within {_START_TIMEOUT_S:g} s, but did not; "
                f"its log ends: {self._log_tail()}"
            )

    def send(self, job: Job) -> bool:
        """Start a job; return False when the worker is dead."""
        self.jobs += 1
        request = json.dumps({"function": job.function, "arguments": job.arguments})
        try:
            self._requests.write(request.encode() + b"\n")
            self._requests.flush()
        except OSError:
            return False
        return True

    def receive(self) -> Outcome:
        """Read the pending answer, or detect that the worker died."""
        line = self.answers.readline()
        if not line.endswith(b"\n"):
            return Outcome(error=self.death())
        return Outcome(**json.loads(line))

    def death(self) -> str:
        """Kill the worker and return how it ended."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        if code is not None and code < 0:
            return f"worker crashed: {signal.Signals(-code).name}"
        return f"worker exited with code {code}"

    def kill(self) -> None:
        """Kill the process; idempotent."""
        self.alive = False
        self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self.answers):
            with contextlib.suppress(OSError):
                pipe.close()

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "(empty)"
