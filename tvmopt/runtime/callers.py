"""Calls of a model from any number of threads: native ones at once, others one after another."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmopt.host import thread_environment, usable_cores
from tvmopt.runtime.bound import BoundCall
from tvmopt.runtime.executor import Executor
from tvmopt.runtime.fallback import fallback, holds_nan
from tvmopt.runtime.library import library_path, open_library
from tvmopt.runtime.metadata import ModelMetadata
from tvmopt.runtime.native import NativeExecutor
from tvmopt.runtime.network import network
from tvmopt.runtime.outputs import Outputs
from tvmopt.runtime.segments import Segments, refused, register_segments
from tvmopt.versions import require_tvm

# Bytes of an output from which on a new array for each call takes less time than a copy.
_LEAST_RENEWED_BYTES = 64 * 1024


class NativeCaller:
    """Runs a native model, with as many calls at once as there are cores.

    A call takes buffers that no other call uses, aligned for the kernels. Calls that run at once
    share the threads (:mod:`tvmopt.codegen.entry_source`).

    Args:
        executor: The model, loaded.
        metadata: Its metadata.
        size: Which of its sizes.
    """

    def __init__(self, executor: NativeExecutor, metadata: ModelMetadata, size: int = 0) -> None:
        self.executor, self._metadata, self._size = executor, metadata, size
        first = BoundCall(executor, metadata, size=size)
        self.has_fallback = first.has_fallback
        large = [array.nbytes >= _LEAST_RENEWED_BYTES for array in first.outputs]
        self._is_renewed = large if any(large) else []
        self._is_plain = not (self.has_fallback or self._is_renewed)
        self._names, self._gives_one = first.outputs.keys(), len(first.outputs) == 1
        self._idle: queue.SimpleQueue[BoundCall] = queue.SimpleQueue()
        self._take, self._give_back = self._idle.get_nowait, self._idle.put
        self._give_back(first)
        self._left, self._lock = usable_cores() - 1, threading.Lock()

    def run_one(self, array: np.ndarray) -> Outputs:
        """Return new arrays with the outputs of a model of one input, as :meth:`run` does.

        A small model computes for a microsecond, so that each line here shows.

        Args:
            array: The input.
        """
        if not self._is_plain:
            return self.run((array,))
        try:
            call = self._take()
        except queue.Empty:
            call = self._another()
        try:
            call.first_input[...] = array
            if call.function(call.arguments):
                raise call.failure()
            if self._gives_one:
                return Outputs.of((call.first_output.copy(),), self._names)
            return Outputs.of([array.copy() for array in call.outputs], self._names)
        finally:
            self._give_back(call)

    def run(self, arrays: Sequence[np.ndarray], *, direct: bool = False) -> Outputs:
        """Return new arrays with the outputs.

        Args:
            arrays: Inputs of the shapes and dtypes of the model, in order.
            direct: Whether to run only the fallback, which must exist.
        """
        try:
            call = self._take()
        except queue.Empty:
            call = self._another()
        try:
            for buffer, array in zip(call.input_arrays, arrays, strict=True):
                buffer[...] = array
            if self._is_renewed:
                return self._renewed(call, direct)
            return Outputs.of([array.copy() for array in call(direct=direct)], self._names)
        finally:
            self._give_back(call)

    def _another(self) -> BoundCall:
        """Return a new call, or when there are as many as cores, the next one that is idle."""
        with self._lock:
            if self._left > 0:
                call = BoundCall(self.executor, self._metadata, size=self._size)
                self._left -= 1
                return call
        return self._idle.get()

    def _renewed(self, call: BoundCall, direct: bool) -> Outputs:
        """Run a call that writes its large outputs into new arrays."""
        for number, is_renewed in enumerate(self._is_renewed):
            if is_renewed:
                call.renew_output(number)
        results = zip(call(direct=direct), self._is_renewed, strict=True)
        arrays = [array if is_renewed else array.copy() for array, is_renewed in results]
        return Outputs.of(arrays, self._names)


class TvmCaller:
    """Runs a model that TVM's runtime has loaded: a lock serialises calls.

    TVM's virtual machine is not thread-safe. Input buffers are allocated once and reused.

    Args:
        executor: The model, loaded.
        metadata: Its metadata.
        size: Which of its sizes.
        lock: Held during a call.
    """

    def __init__(
        self, executor: Executor, metadata: ModelMetadata, size: int, lock: threading.Lock
    ) -> None:
        self._executor, self._metadata, self.lock = executor, metadata, lock
        self._buffers = [executor.empty(spec) for spec in metadata.at(size).inputs]
        self.network: Callable[[], Sequence[Any]] = network(
            executor, self._buffers, metadata.gpu, size
        )
        self._fallback = fallback(executor, self._buffers, size)
        self.has_fallback = self._fallback is not None
        if metadata.segments:
            bound = Segments(metadata.threads).bound
            self.network = bound(self.network)
            self._fallback = self._fallback and bound(self._fallback)
        self._pool = threading.local()
        self._names = tuple(spec.name for spec in metadata.outputs)

    def run_one(self, array: np.ndarray) -> Outputs:
        """Return new arrays with the outputs of a model of one input, as :meth:`run` does."""
        return self.run((array,))

    def run(self, arrays: Sequence[np.ndarray], *, direct: bool = False) -> Outputs:
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
        return Outputs.of(values, self._names)

    def _prepare_pool(self) -> None:
        """Set the number of threads of this thread's pool; TVM has one pool per thread."""
        if hasattr(self._pool, "ready"):
            return
        import tvm_ffi

        tvm_ffi.get_global_func("runtime.config_threadpool")(1, self._metadata.threads)
        self._pool.ready = True

    def _values(self, results: Sequence[Any]) -> list[np.ndarray]:
        return [self._executor.read(tensor) for tensor in results]


class Callers:
    """Who calls each size of a library; made when the size is called first.

    Args:
        library: The library, open, its hash checked.
        metadata: Metadata of the model.
    """

    def __init__(self, library: Any, metadata: ModelMetadata) -> None:
        self._executor, self._metadata = _executor(library, metadata), metadata
        self._lock, self._call_lock = threading.Lock(), threading.Lock()
        self._made: dict[int, NativeCaller | TvmCaller] = {}

    def __getitem__(self, size: int) -> NativeCaller | TvmCaller:
        """Return who calls a size."""
        made = self._made.get(size)
        if made is not None:
            return made
        with self._lock:
            if size not in self._made:
                self._made[size] = self._make(size)
            return self._made[size]

    def _make(self, size: int) -> NativeCaller | TvmCaller:
        if isinstance(self._executor, NativeExecutor):
            return NativeCaller(self._executor, self._metadata, size)
        return TvmCaller(self._executor, self._metadata, size, self._call_lock)


def _executor(library: Any, metadata: ModelMetadata) -> Executor:
    """Load a library."""
    device = None
    if not metadata.native:
        require_tvm()
        # Only the first user of TVM's thread pool in a process can set its size by this.
        for name, value in thread_environment(metadata.threads).items():
            os.environ.setdefault(name, value)
        import tvm

        device = tvm.cuda() if metadata.gpu else tvm.cpu()
        if metadata.segments:
            register_segments(metadata.threads)
    return open_library(
        library_path(library),
        native=metadata.native,
        threads=metadata.threads,
        device=device,
    )
