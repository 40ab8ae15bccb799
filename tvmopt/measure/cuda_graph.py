"""Time kernels on a CUDA GPU as it would run them back to back, without the host's delays.

A launch takes the host some microseconds, longer than many a kernel runs. So many calls are
recorded as one CUDA graph, and the graph is timed. TVM records graphs only of whole networks;
here the runtime library that it has loaded is called directly.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tvm

# How long a recorded burst lasts, and the most calls in one.
_BURST_S, _MOST_CALLS = 3e-4, 100
_RELAXED = 2  # cudaStreamCaptureModeRelaxed: TVM may allocate while it records


class CudaCallError(RuntimeError):
    """A call of CUDA's runtime failed."""


class GraphTimer:
    """Times calls on the first GPU, on a stream of its own.

    Use as a context manager: inside, TVM launches on that stream.
    """

    def __init__(self) -> None:
        self._device = tvm.runtime.cuda(0)
        self._cuda = _runtime_library()
        self._start, self._stop = ctypes.c_void_p(), ctypes.c_void_p()
        self._stream = ctypes.c_void_p()
        self._graphs: list[tuple[ctypes.c_void_p, ctypes.c_void_p]] = []

    def __enter__(self) -> GraphTimer:
        self._call("cudaStreamCreateWithFlags", ctypes.byref(self._stream), 1)
        self._call("cudaEventCreate", ctypes.byref(self._start))
        self._call("cudaEventCreate", ctypes.byref(self._stop))
        return self

    def __exit__(self, *exc_info: object) -> None:
        for graph, executable in self._graphs:
            self._cuda.cudaGraphExecDestroy(executable)
            self._cuda.cudaGraphDestroy(graph)
        self._graphs.clear()
        self._cuda.cudaEventDestroy(self._start)
        self._cuda.cudaEventDestroy(self._stop)
        self._cuda.cudaStreamDestroy(self._stream)

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Inside, what TVM launches goes to this timer's stream."""
        self._device.set_raw_stream(self._stream.value)
        try:
            yield
        finally:
            self._device.set_raw_stream(0)

    def wait(self) -> None:
        """Wait for what was launched on this timer's stream, which others do not wait for."""
        self._call("cudaStreamSynchronize", self._stream)

    def kernel(self, run: Callable[[], None]) -> Callable[[int], float]:
        """A function that gives the mean seconds of one ``run``, of a burst of them.

        ``run`` must launch the same work on every call and not wait for it.
        """
        with self.launching():
            run()
            once = self._seconds(run)
            count = max(1, min(_MOST_CALLS, round(_BURST_S / max(once, 1e-7))))
            launch = self._record(run, count)
            self._seconds(launch)

        def timed(_times: int) -> float:
            with self.launching():
                return self._seconds(launch) / count

        return timed

    def _record(self, run: Callable[[], None], count: int) -> Callable[[], None]:
        """A graph of ``count`` runs, as a function that launches it."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cudaStreamBeginCapture", self._stream, _RELAXED)
        try:
            for _ in range(count):
                run()
        finally:
            self._call("cudaStreamEndCapture", self._stream, ctypes.byref(graph))
        self._call("cudaGraphInstantiate", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        self._graphs.append((graph, executable))
        return lambda: self._call("cudaGraphLaunch", executable, self._stream)

    def _seconds(self, run: Callable[[], None]) -> float:
        self._call("cudaEventRecord", self._start, self._stream)
        run()
        self._call("cudaEventRecord", self._stop, self._stream)
        self._call("cudaEventSynchronize", self._stop)
        spent = ctypes.c_float()
        self._call("cudaEventElapsedTime", ctypes.byref(spent), self._start, self._stop)
        return spent.value * 1e-3

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            self._cuda.cudaGetErrorString.restype = ctypes.c_char_p
            text = self._cuda.cudaGetErrorString(code).decode()
            raise CudaCallError(f"{name} failed: {text}")


def _runtime_library() -> ctypes.CDLL:
    """The CUDA runtime that TVM has loaded into this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.search(r"\s(/\S*libcudart\.so\S*)$", line)
        if found:
            return ctypes.CDLL(found.group(1))
    raise CudaCallError("TVM's CUDA runtime is not loaded in this process")
