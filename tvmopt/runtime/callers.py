"""Calls of a model from any number of threads: native ones at once, others one after another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmopt.host import usable_cores
from tvmopt.runtime.bound import BoundCall
from tvmopt.runtime.executor import Executor
from tvmopt.runtime.fallback import fallback, holds_nan
from tvmopt.runtime.library import library_path, open_library
from tvmopt.runtime.metadata import ModelMetadata
from tvmopt.runtime.native import NativeExecutor
from tvmopt.runtime.network import network
from tvmopt.runtime.segments import Segments, refused, register_segments
from tvmopt.versions import require_tvm

# Bytes of an output from which on a new array for each call takes less time than a copy.
_LEAST_RENEWED_BYTES = 64 * 1024


class NativeCaller:
    """Runs a native model, with as many calls at once as there are cores.

    A call takes buffers that no other call uses, aligned for the kernels. Calls that run at once
    share the threads (:mod:`tvmopt.codegen.native_sources`).

    Args:
        executor: The model, loaded.
        metadata: Its metadata.
    """

    def __init__(self, executor: NativeExecutor, metadata: ModelMetadata) -> None:
        self.executor, self._metadata = executor, metadata
        self._permits = threading.Semaphore(usable_cores())
        self._idle = [BoundCall(executor, metadata)]
        self.has_fallback = self._idle[0].has_fallback
        sizes = [array.nbytes for array in self._idle[0].outputs]
        self._is_renewed = [size >= _LEAST_RENEWED_BYTES for size in sizes]

    def run(self, arrays: Sequence[np.ndarray], *, direct: bool = False) -> list[np.ndarray]:
        """Return new arrays with the outputs.

        Args:
            arrays: Inputs of the shapes and dtypes of the model, in order.
            direct: Whether to run only the fallback, which must exist.
        """
        with self._permits:
            try:
                call = self._idle.pop()
            except IndexError:
                call = BoundCall(self.executor, self._metadata)
            try:
                for buffer, array in zip(call.inputs.values(), arrays, strict=True):
                    buffer[...] = array
                for number, is_renewed in enumerate(self._is_renewed):
                    if is_renewed:
                        call.renew_output(number)
                results = zip(call(direct=direct), self._is_renewed, strict=True)
                return [array if is_renewed else array.copy() for array, is_renewed in results]
            finally:
                self._idle.append(call)


class TvmCaller:
    """Runs a model that TVM's runtime has loaded: a lock serialises calls.

    TVM's virtual machine is not thread-safe. Input buffers are allocated once and reused.

    Args:
        executor: The model, loaded.
        metadata: Its metadata.
    """

    def __init__(self, executor: Executor, metadata: ModelMetadata) -> None:
        self._executor, self._metadata = executor, metadata
        self._buffers = [executor.empty(spec) for spec in metadata.inputs]
        self.network: Callable[[], Sequence[Any]] = network(executor, self._buffers, metadata.gpu)
        self._fallback = fallback(executor, self._buffers)
        self.has_fallback = self._fallback is not None
        if metadata.segments:
            bound = Segments(metadata.threads).bound
            self.network = bound(self.network)
            self._fallback = self._fallback and bound(self._fallback)
        self._pool = threading.local()
        self.lock = threading.Lock()

    def run(self, arrays: Sequence[np.ndarray], *, direct: bool = False) -> list[np.ndarray]:
        """Return new arrays with the outputs.

        Args:
            arrays: Inputs of the shapes and dtypes of the model, in order.
            direct: Whether to run only the fallback, which must exist.

        Raises:
            ConfigError: When a part that runs in ONNX Runtime refuses the values.
        """
        with self.lock:
            self._prepare_pool()
            for buffer, array in zip(self._buffers, arrays, strict=True):
                self._executor.write(buffer, array)
            try:
                values = [] if direct else self._values(self.network())
                if self._fallback is not None and (direct or holds_nan(values)):
                    values = self._values(self._fallback())
            except (ValueError, RuntimeError, MemoryError) as error:
                if not self._metadata.segments:
                    raise
                raise refused(error) from error
        return values

    def _prepare_pool(self) -> None:
        """Set the number of threads of this thread's pool; TVM has one pool per thread."""
        if hasattr(self._pool, "ready"):
            return
        import tvm_ffi

        tvm_ffi.get_global_func("runtime.config_threadpool")(1, self._metadata.threads)
        self._pool.ready = True

    def _values(self, results: Sequence[Any]) -> list[np.ndarray]:
        return [self._executor.read(tensor) for tensor in results]


def open_caller(library: Any, metadata: ModelMetadata) -> NativeCaller | TvmCaller:
    """Load a library and return who calls it.

    Args:
        library: The library, open, its hash checked.
        metadata: Metadata of the model.
    """
    device = None
    if not metadata.native:
        require_tvm()
        # Only the first user of TVM's thread pool in a process can set its size by this.
        os.environ.setdefault("TVM_NUM_THREADS", str(metadata.threads))
        import tvm

        device = tvm.cuda() if metadata.gpu else tvm.cpu()
        if metadata.segments:
            register_segments(metadata.threads)
    executor = open_library(
        library_path(library),
        native=metadata.native,
        threads=metadata.threads,
        device=device,
    )
    if isinstance(executor, NativeExecutor):
        return NativeCaller(executor, metadata)
    return TvmCaller(executor, metadata)
