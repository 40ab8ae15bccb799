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

from .arrays import read_array, write_array

#: When what runs beside the threads, copies and products of warpgroups, is done.
ORDERS = ("early", "late", "chance")
_LOCK = threading.Lock()
# The worker is a module of the tests, which no installation holds: it is found from here.
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
    """Call a kernel, scheduled or generated for ``arch``, on this CPU.

    Threads run one at a time, in an order drawn from ``seed``, each until it must wait. What the
    hardware does beside them (copies into shared memory and out of it, products of warpgroups) is
    done as soon as it is asked for, as late as the kernel's own waiting allows, or by chance: a
    kernel whose numbers are right in each of these orders waits for what it needs. A kernel in
    which no thread can go on is refused, with what they wait for.

    Not emulated: how fast anything is, fences (memory is in order here), the bounds of global
    memory, and rounding inside the tensor cores, whose sums hold more or fewer bits than float32.

    Args:
        func: The kernel, a function of tensors alone.
        inputs: Its first arguments.
        outputs: The others, with what they hold before the call; they stay as they are.
        arch: The GPU it was made for.
        order: ``"early"``, ``"late"`` or ``"chance"``.
        seed: Of the threads' order, and of what is done by chance.
        timeout_s: Seconds that the call may take, compiling included.

    Returns:
        What the kernel left in ``outputs``, new arrays of the same shapes and types.

    Raises:
        ConfigError: When ``order`` is none, or an instruction is not emulated.
        BuildError: When the kernel does not compile.
        ArtifactError: When it reads or writes outside of shared memory, uses a barrier wrongly,
            comes to a standstill or dies.
        LimitError: When it takes too long.
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
        }
        answer = _worker().ask(request, timeout_s)
        if "error" in answer:
            raise getattr(errors, answer["kind"])(answer["error"])
        return [read_array(about) for about in answer["arrays"]]


@functools.cache
def _worker() -> _Worker:
    return _Worker()


class _Worker:
    """The process and the two pipes to it."""

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
        """The answer to one request; a worker that gives none is replaced by the next call."""
        with contextlib.suppress(OSError):  # a dead worker is told by the answer that is missing
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
        """End the process; safe to call twice."""
        self._process.kill()
        self._process.wait()
        atexit.unregister(self.stop)
        for file in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                file.close()

    def _said(self) -> str:
        self._log.seek(0)
        return " ".join(self._log.read().decode(errors="replace").split())[-300:]
