"""CUDA graphs: capture kernel launches on a stream and replay them as one launch.

A kernel launch takes the host some microseconds, longer than many kernels run. TVM captures only
parts of networks; this module calls the CUDA runtime that TVM has loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_RELAXED = 2  # cudaStreamCaptureModeRelaxed: TVM may allocate during capture
_NON_BLOCKING = 1


class CudaCallError(RuntimeError):
    """A CUDA runtime call failed."""


class Stream:
    """A stream of the first GPU for TVM's launches, and the graphs captured on it.

    Raises:
        CudaCallError: When TVM's CUDA runtime is not loaded, or a CUDA call fails.
    """

    def __init__(self) -> None:
        import tvm

        self._device = tvm.runtime.cuda(0)
        self._cuda = _runtime_library()
        self._handle, self._start, self._stop = (ctypes.c_void_p() for _ in range(3))
        self._graphs: list[tuple[ctypes.c_void_p, ctypes.c_void_p]] = []
        self._call("cudaStreamCreateWithFlags", ctypes.byref(self._handle), _NON_BLOCKING)
        self._call("cudaEventCreate", ctypes.byref(self._start))
        self._call("cudaEventCreate", ctypes.byref(self._stop))
        self._free = weakref.finalize(
            self, _free, self._cuda, self._graphs, self._start, self._stop, self._handle
        )
        self._free.atexit = False  # process exit frees everything

    def close(self) -> None:
        """Free the stream and its graphs; garbage collection does the same."""
        self._free()

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Make this stream TVM's current stream in this thread, within the context."""
        self._device.set_raw_stream(self._handle.value)
        try:
            yield
        finally:
            self._device.set_raw_stream(0)

    def wait(self) -> None:
        """Synchronise with this stream; it is non-blocking, so other streams do not wait for it."""
        self._call("cudaStreamSynchronize", self._handle)

    def record(self, run: Callable[[], object], count: int = 1) -> Callable[[], None]:
        """Capture ``count`` calls of ``run`` as a CUDA graph.

        Args:
            run: Launches the same work at the same addresses on every call, without synchronising.
            count: Number of calls in the graph.

        Returns:
            A function that launches the graph on this stream.

        Raises:
            CudaCallError: When a CUDA call fails.
        """
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        with self.launching():
            self._call("cudaStreamBeginCapture", self._handle, _RELAXED)
            try:
                for _ in range(count):
                    run()
            finally:
                self._call("cudaStreamEndCapture", self._handle, ctypes.byref(graph))
        self._call("cudaGraphInstantiate", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        self._graphs.append((graph, executable))
        return lambda: self._call("cudaGraphLaunch", executable, self._handle)

    def seconds(self, run: Callable[[], object]) -> float:
        """Return the GPU time, in seconds, of the work that ``run`` launches on this stream."""
        self._call("cudaEventRecord", self._start, self._handle)
        run()
        self._call("cudaEventRecord", self._stop, self._handle)
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


def free_bytes() -> int:
    """Return the free memory of the first GPU, in bytes.

    Raises:
        CudaCallError: As :class:`Stream`.
    """
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    code = _runtime_library().cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    if code:
        raise CudaCallError(f"cudaMemGetInfo failed with error {code}")
    return free.value


def _free(
    cuda: ctypes.CDLL,
    graphs: list[tuple[ctypes.c_void_p, ctypes.c_void_p]],
    start: ctypes.c_void_p,
    stop: ctypes.c_void_p,
    stream: ctypes.c_void_p,
) -> None:
    for graph, executable in graphs:
        cuda.cudaGraphExecDestroy(executable)
        cuda.cudaGraphDestroy(graph)
    cuda.cudaEventDestroy(start)
    cuda.cudaEventDestroy(stop)
    cuda.cudaStreamDestroy(stream)


def _runtime_library() -> ctypes.CDLL:
    """Return the libcudart that TVM has loaded into this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.search(r"\s(/\S*libcudart\.so\S*)$", line)
        if found:
            return ctypes.CDLL(found.group(1))
    raise CudaCallError("TVM's CUDA runtime is not loaded in this process")
