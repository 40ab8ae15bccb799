"""Run the segments of a native library in ONNX Runtime.

The library calls a function of this process with the number of the segment and the addresses of its
inputs and outputs. ONNX Runtime reads and writes them in place.
"""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmopt.runtime.segments import new_session, timed

#: Prototype of the function that the library calls.
RUNNER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))

# Most bindings that a segment keeps: calls that run at once have different addresses.
_MOST_BINDINGS = 64


@dataclasses.dataclass(frozen=True)
class NativeSegment:
    """A segment.

    Attributes:
        address: Where its ONNX model lies in the library.
        size: Bytes of the model.
        tensors: Shape and NumPy dtype of its inputs, then of its outputs.
    """

    address: int
    size: int
    tensors: Sequence[tuple[tuple[int, ...], str]]


class NativeSegments:
    """Runs the segments of one library; any threads may call it at once.

    Args:
        segments: The segments, by number.
        threads: Threads of each session of ONNX Runtime.
    """

    def __init__(self, segments: Sequence[NativeSegment], threads: int) -> None:
        self._segments, self._threads = segments, threads
        self._sessions: dict[int, Any] = {}
        self._bindings: list[dict[tuple[int, ...], Any]] = [{} for _ in segments]
        self._lock = threading.Lock()
        self._failed = threading.local()
        #: Function that the library calls to run a segment.
        self.runner = RUNNER(self._run)

    def error(self) -> Exception | None:
        """Return what ended the last call of this thread, if that was a segment; forget it."""
        found = getattr(self._failed, "error", None)
        self._failed.error = None
        return found

    def _run(self, number: int, tensors: Any) -> int:
        addresses = tuple(tensors[: len(self._segments[number].tensors)])
        with timed():
            try:
                self._session(number).run_with_iobinding(self._binding(number, addresses))
            except Exception as error:  # ONNX Runtime's errors have no common class
                self._failed.error = error
                return -1
        return 0

    def _session(self, number: int) -> Any:
        if number not in self._sessions:
            with self._lock:
                if number not in self._sessions:
                    segment = self._segments[number]
                    model = ctypes.string_at(segment.address, segment.size)
                    self._sessions[number] = new_session(model, self._threads)
        return self._sessions[number]

    def _binding(self, number: int, addresses: tuple[int, ...]) -> Any:
        """Return the binding of a session to tensors at ``addresses``."""
        known = self._bindings[number]
        found = known.get(addresses)
        if found is None:
            found = self._new_binding(number, addresses)
            with self._lock:
                if len(known) >= _MOST_BINDINGS:
                    known.clear()
                known[addresses] = found
        return found

    def _new_binding(self, number: int, addresses: tuple[int, ...]) -> Any:
        session = self._sessions[number]
        binding = session.io_binding()
        names = [(binding.bind_input, each.name) for each in session.get_inputs()]
        names += [(binding.bind_output, each.name) for each in session.get_outputs()]
        tensors = self._segments[number].tensors
        for (bind, name), (shape, dtype), at in zip(names, tensors, addresses, strict=True):
            bind(name, "cpu", 0, np.dtype(dtype), shape, at)
        return binding
