"""Run the segments of a model that are not compiled, in ONNX Runtime.

A library calls the packed function ``FUNCTION`` with the segment's ONNX model as bytes, the inputs
and the outputs, which are not copied; or ``ALLOCATING_FUNCTION``, which returns the outputs, where
their shapes are known at run time only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tvmopt.errors import ConfigError, EnvironmentSetupError, in_one_line
from tvmopt.printable import one_line

#: Names of the packed functions.
FUNCTION = "tvmopt.onnxruntime"
ALLOCATING_FUNCTION = "tvmopt.onnxruntime.allocating"


@dataclasses.dataclass(frozen=True)
class _Session:
    """A session, and the tensor that holds its model.

    The tensor keeps the model's memory, so that its address names this session alone.
    """

    model: Any
    session: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Segments:
    """The sessions of one model's segments; they end with this object.

    Args:
        threads: Threads of each session.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._sessions: dict[tuple[int, int], _Session] = {}
        self._lock = threading.Lock()

    def bound(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Return ``run``, whose segments run in these sessions."""

        def bound_run() -> Any:
            before = _active.segments
            _active.segments = self
            try:
                return run()
            finally:
                _active.segments = before

        return bound_run

    def session(self, model: Any) -> _Session:
        """Return the session of a segment; ``model`` is its ONNX model, a tensor of bytes."""
        content = np.from_dlpack(model)
        key = (content.__array_interface__["data"][0], content.size)
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = self._new(model, content)
            return self._sessions[key]

    def _new(self, model: Any, content: np.ndarray) -> _Session:
        session = new_session(content.tobytes(), self._threads)
        names = (session.get_inputs(), session.get_outputs())
        inputs, outputs = (tuple(each.name for each in side) for side in names)
        return _Session(model, session, inputs, outputs)


def new_session(model: bytes, threads: int) -> Any:
    """Return a session of ONNX Runtime for a segment's model."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Otherwise the u8s8 GEMM of ONNX Runtime saturates on x86 CPUs without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    # Threads that spin after a segment would take the cores from the kernels behind it.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class _Active(threading.local):
    """Segments whose sessions the calls of this thread use."""

    segments: Segments | None = None


@dataclasses.dataclass
class _Process:
    """What this process keeps.

    Attributes:
        segments: Sessions of libraries that no :class:`Segments` is bound to.
        seconds: Seconds that all segments have taken.
    """

    segments: Segments
    seconds: float = 0.0


_active = _Active()
_process = _Process(Segments(1))


def seconds_in_segments() -> float:
    """Return the seconds that all segments of this process have taken so far."""
    return _process.seconds


@contextlib.contextmanager
def timed() -> Iterator[None]:
    """Count the time inside as time of a segment."""
    start = time.perf_counter()
    try:
        yield
    finally:
        _process.seconds += time.perf_counter() - start


def refused(error: Exception) -> ConfigError:
    """Return the error of a call whose inputs ONNX Runtime refuses.

    The inputs of the call cause it: ONNX Runtime ran the segment when the model was converted.
    """
    return ConfigError(
        "inputs must be such that ONNX Runtime, which runs a part of the model, takes them, but it "
        f"says: {in_one_line(error)}"
        "; correct the inputs"
    )


def register_segments(threads: int) -> None:
    """Register the packed functions; must precede the loading of a library that calls them.

    Args:
        threads: Threads of the sessions where no :class:`Segments` is bound to the calls.
    """
    import tvm_ffi

    _process.segments = Segments(threads)
    tvm_ffi.register_global_func(FUNCTION, _packed(_run), override=True)
    tvm_ffi.register_global_func(ALLOCATING_FUNCTION, _packed(_returned), override=True)


def require_onnxruntime() -> None:
    """Refuse a model with segments where ONNX Runtime is not installed.

    Raises:
        EnvironmentSetupError: When it is not.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise EnvironmentSetupError(
            "the model runs some of its nodes in ONNX Runtime, which must be installed, but is "
            "not; run: pip install onnxruntime"
        )


def _packed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` on the clock, and with ONNX Runtime's errors as ValueErrors.

    TVM passes a ValueError on as such.
    """

    def run(*arguments: Any) -> Any:
        with timed():
            try:
                return function(*arguments)
            except Exception as error:  # ONNX Runtime's errors have no common class
                raise ValueError(one_line(str(error))) from error

    return run


def _run(model: Any, *tensors: Any) -> None:
    found = _session(model)
    arrays = [np.from_dlpack(tensor) for tensor in tensors]
    inputs, outputs = arrays[: len(found.inputs)], arrays[len(found.inputs) :]
    binding = found.session.io_binding()
    for name, array in zip(found.inputs, inputs, strict=True):
        binding.bind_cpu_input(name, array)
    for name, array in zip(found.outputs, outputs, strict=True):
        binding.bind_output(
            name, "cpu", 0, array.dtype, array.shape, array.__array_interface__["data"][0]
        )
    found.session.run_with_iobinding(binding)


def _returned(model: Any, *tensors: Any) -> Any:
    import tvm

    found = _session(model)
    arrays = (np.from_dlpack(tensor) for tensor in tensors)
    results = found.session.run(list(found.outputs), dict(zip(found.inputs, arrays, strict=True)))
    made = [tvm.runtime.tensor(np.asarray(result)) for result in results]
    return made[0] if len(made) == 1 else made


def _session(model: Any) -> _Session:
    return (_active.segments or _process.segments).session(model)
