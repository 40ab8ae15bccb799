"""Call emulated kernels in a worker process that lives as long as this process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import tvm
from tvm import tirx

from tvmopt import errors
from tvmopt.device.cuda import CudaArch
from tvmopt.errors import ArtifactError, ConfigError, LimitError
from tvmopt.kernels.scheduled import FREE_ATTR

from .arrays import read_array, write_array

#: When asynchronous operations (async copies, TMA, wgmma) complete.
ORDERS = ("early", "late", "chance")
_LOCK = threading.Lock()
# The worker is a test module and not installed, so it runs from the repository root.
_ROOT = Path(__file__).parents[3]


def run(
    func: tirx.PrimFunc,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    arch: CudaArch,
    *,
    order: str = "late",
    seed: int = 0,
    timeout_s: float = 300.0,
) -> list[np.ndarray]:
    """Run a scheduled or generated GPU kernel on this CPU.

    Threads run one at a time, in an order drawn from ``seed``; each runs until it must wait.
    Asynchronous operations (async copies, TMA, wgmma) complete at once (``"early"``), as late as
    the kernel's own waits allow (``"late"``), or at random times (``"chance"``). A kernel that is
    right in all three orders waits for everything that it needs. A deadlock is an error, and its
    message says what the threads wait for.

    Not emulated: timing; fences (memory is sequentially consistent here); bounds of global memory;
    rounding inside the tensor cores, whose accumulators are wider or narrower than float32.

    A kernel that is launched with PDL must wait for the kernel before it before it copies from an
    array, or loads from one by ``__ldg``, unless lowering has marked the array as a constant.

    Args:
        func: The kernel, a function of tensors only.
        inputs: Its first arguments.
        outputs: Its last arguments, with their contents before the call; they are not changed.
        arch: The GPU that the kernel was made for.
        order: ``"early"``, ``"late"`` or ``"chance"``.
        seed: Seed of the order of threads, and of random completion times.
        timeout_s: Time limit of the call in seconds, including compilation.

    Returns:
        New arrays with the contents of ``outputs`` after the call.

    Raises:
        ConfigError: When ``order`` is unknown, or an instruction is not emulated.
        BuildError: When the kernel does not compile.
        ArtifactError: When the kernel accesses memory outside shared memory, misuses a barrier,
            deadlocks or crashes.
        LimitError: When the call exceeds the time limit.
    """
    if order not in ORDERS:
        raise ConfigError(f"order must be one of {', '.join(ORDERS)}, but got {order!r}")
    named = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with _LOCK, tempfile.TemporaryDirectory(prefix="tvmopt-emulate-") as scratch:
        folder = Path(scratch)
        arrays = [*inputs, *outputs]
        request = {
            "module": tvm.ir.save_json(named),
            "arch": arch.to_dict(),
            "order": ORDERS.index(order),
            "seed": seed,
            "arrays": [write_array(folder / str(n), array) for n, array in enumerate(arrays)],
            "results": len(outputs),
            "constants": [int(at) for at in (func.attrs or {}).get(FREE_ATTR) or []],
        }
        answer = _worker().ask(request, timeout_s)
        if "error" in answer:
            raise getattr(errors, answer["kind"])(answer["error"])
        return [read_array(about) for about in answer["arrays"]]


@functools.cache
def _worker() -> _Worker:
    return _Worker()


class _Worker:
    """The worker process and the two pipes to it."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        command = [sys.executable, "-m", f"{__package__}.worker"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=_ROOT
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout
        atexit.register(self.stop)

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the answer to one request; the next call replaces a silent worker."""
        with contextlib.suppress(OSError):  # a dead worker is detected by its missing answer
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            ready = selector.select(timeout_s)
        line = self._answers.readline() if ready else b""
        if line.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        self.stop()
        _worker.cache_clear()
        if not ready:
            raise LimitError(
                f"an emulated kernel must end within {timeout_s:g} s, but did not; "
                "give it a smaller shape or more time"
            )
        raise ArtifactError(
            f"a kernel must not read or write outside of its arrays, but the process that ran it "
            f"died with {self._process.returncode}: {self._said()}"
        )

    def stop(self) -> None:
        """Kill the process; safe to call twice."""
        self._process.kill()
        self._process.wait()
        atexit.unregister(self.stop)
        for file in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                file.close()

    def _said(self) -> str:
        self._log.seek(0)
        return " ".join(self._log.read().decode(errors="replace").split())[-300:]
