"""Run a library of native code, which needs no other library."""

from __future__ import annotations

import _ctypes
import ctypes
import dataclasses
import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tvmopt.errors import ArtifactError, ConfigError, EnvironmentSetupError, in_one_line
from tvmopt.runtime.executor import Executor, Spec
from tvmopt.runtime.native_segments import RUNNER, NativeSegment, NativeSegments
from tvmopt.runtime.segments import refused

#: Environment variable: microseconds that an idle thread of a model spins before it sleeps.
SPIN_VARIABLE = "TVMOPT_SPIN_US"
#: Alignment of tensors in bytes; kernels read and write whole cache lines.
ALIGNMENT_BYTES = 64

_SPIN_US, _MOST_SPIN_US = 1000, 1_000_000
_PREFIX = "tvmopt_"
_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_CONFIGURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_long)
_ERROR = ctypes.CFUNCTYPE(ctypes.c_char_p)
_SET_RUNNER = ctypes.CFUNCTYPE(None, RUNNER)
_MODEL = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)


@dataclasses.dataclass(frozen=True)
class NativeTensor:
    """Shape and dtype of an input or output of a library."""

    shape: tuple[int, ...]
    dtype: str


class NativeRun:
    """A function of a library on fixed tensors; its calls return the outputs.

    Attributes:
        function: Runs the model on ``arguments``; returns whether it failed.
        arguments: Pointer to the addresses of the tensors.
        failure: Returns the error of a call that failed.

    Args:
        function: The function.
        inputs: Its input tensors.
        outputs: Its output tensors.
        failure: Returns the error of a call that failed.
        keep: What must live as long as this object.
    """

    __slots__ = (
        "_addresses", "_first_output", "_keep", "_outputs", "arguments", "failure", "function",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[[Any], int],
        inputs: Sequence[np.ndarray],
        outputs: list[np.ndarray],
        failure: Callable[[], Exception],
        keep: object,
    ) -> None:
        self.function, self.failure = function, failure
        self._outputs, self._first_output = outputs, len(inputs)
        self._keep = keep, inputs
        tensors = (*inputs, *outputs)
        self._addresses = (ctypes.c_void_p * len(tensors))(*map(address, tensors))
        # ctypes passes a pointer as it is, but makes a new one of an array at each call.
        self.arguments = ctypes.c_void_p(ctypes.addressof(self._addresses))

    def __call__(self) -> list[np.ndarray]:
        """Run the function."""
        if self.function(self.arguments):
            raise self.failure()
        return self._outputs

    def replace_output(self, number: int, array: np.ndarray) -> None:
        """Let all further calls write an output into ``array``, of its shape and dtype."""
        self._outputs[number] = array
        self._addresses[self._first_output + number] = address(array)


class NativeExecutor(Executor):
    """A library that is compiled ahead of time. Its tensors are arrays at cache lines.

    Calls of several Python threads run at once, if their tensors differ: each call takes a pool of
    worker threads and a workspace in the library, and gives them back.

    Args:
        path: The library.
        threads: Threads of a call; 0: as many as the library was built for.

    Raises:
        ArtifactError: When the system cannot load the library.
        ConfigError: When the environment variable ``TVMOPT_SPIN_US`` is no time.
    """

    def __init__(self, path: str, threads: int) -> None:
        spin_us = _spin_us()
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise ArtifactError(
                f"the system must load the model's library, but says: {in_one_line(error)}; build "
                "the model on a machine whose C library is not newer"
            ) from error
        unload = weakref.finalize(self._library, _ctypes.dlclose, self._library._handle)
        unload.atexit = False
        self._error = self._function("error", _ERROR)
        if self._function("configure", _CONFIGURE)(threads, spin_us):
            raise ConfigError(_text(self._error))
        self._outputs = [spec for side, spec in self._tensors() if side == "output"]
        self._segments = NativeSegments(segments := self._read_segments(), threads)
        if segments:
            self._function("set_segment_runner", _SET_RUNNER)(self._segments.runner)

    def has(self, name: str) -> bool:
        """Return whether the library has the function ``name``, or other symbol."""
        try:
            self._function(name, _RUN)
        except OSError:
            return False
        return True

    def bind(
        self, name: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> NativeRun:
        """Return a function that runs ``name``; all its calls write the same arrays.

        Args:
            name: Name of the function.
            inputs: Input tensors.
            outputs: Output tensors; None allocates them.
        """
        results = [self.empty(spec) for spec in self._outputs] if outputs is None else list(outputs)
        function = self._function(name, _RUN)
        return NativeRun(function, inputs, results, self._failure, (self._library, self._segments))

    def timestamps(self) -> tuple[list[str], np.ndarray]:
        """Return the steps of a profiling build, and the buffer of their timestamps.

        Returns:
            The name of each step in order, and an array of shape (steps, 2) that each call of
            ``main`` overwrites: nanoseconds before and after the step.

        Raises:
            ArtifactError: When the library was not built for profiling.
        """
        if not self.has("timestamps"):
            raise ArtifactError("the library must be a profiling build, but takes no times")
        names = [" ".join(words) for words in self._lines("steps")]
        place = _ctypes.dlsym(self._library._handle, _PREFIX + "timestamps")
        memory = (ctypes.c_int64 * (2 * len(names))).from_address(place)
        return names, np.ctypeslib.as_array(memory).reshape(len(names), 2)

    def _failure(self) -> Exception:
        """Return why a call of this thread has just failed."""
        if cause := self._segments.error():
            found = refused(cause)
            found.__cause__ = cause
            return found
        return EnvironmentSetupError(
            f"the model must get the threads and memory it needs, but: {_text(self._error)}"
            "; set fewer threads, or free memory"
        )

    def empty(self, spec: Spec) -> np.ndarray:
        """Return a new tensor, not initialised."""
        return aligned_empty(spec.shape, spec.dtype)

    def write(self, tensor: np.ndarray, array: np.ndarray) -> None:
        """Copy ``array`` into a tensor of its shape and dtype."""
        tensor[...] = array

    def read(self, tensor: np.ndarray) -> np.ndarray:
        """Return a copy of a tensor."""
        return tensor.copy()

    def _tensors(self) -> Iterator[tuple[str, NativeTensor]]:
        """Yield ``"input"`` or ``"output"`` with shape and dtype, for each tensor."""
        for side, *words in self._lines("tensors"):
            yield side, _tensor(words)

    def _read_segments(self) -> list[NativeSegment]:
        """Return the segments that ONNX Runtime runs."""
        if not self.has("segments"):  # built by a version that had none
            return []
        found: list[tuple[int, list[NativeTensor]]] = []
        for kind, *words in self._lines("segments"):
            if kind == "segment":
                found.append((int(words[0]), []))
            else:
                found[-1][1].append(_tensor(words))
        model = self._function("segment_model", _MODEL)
        return [
            NativeSegment(model(number), size, [(ty.shape, ty.dtype) for ty in tensors])
            for number, (size, tensors) in enumerate(found)
        ]

    def _lines(self, name: str) -> list[list[str]]:
        """Return the words of each line of a text in the library."""
        text = ctypes.c_char_p(_ctypes.dlsym(self._library._handle, _PREFIX + name)).value
        return [line.split() for line in (text or b"").decode().splitlines()]

    def _function(self, name: str, prototype: Any) -> Any:
        """Return a function of the library; it does not keep the library loaded.

        ``ctypes`` functions that are found by an attribute of a library keep it for ever.

        Raises:
            OSError: When the library has none of this name.
        """
        return prototype(_ctypes.dlsym(self._library._handle, _PREFIX + name))


def _tensor(words: Sequence[str]) -> NativeTensor:
    """Return a tensor from its dtype, rank and extents."""
    return NativeTensor(tuple(map(int, words[2:])), words[0])


def aligned_empty(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return a new array, not initialised, that starts at a cache line.

    Args:
        shape: Its shape.
        dtype: NumPy name of its dtype.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -address(memory) % ALIGNMENT_BYTES
    return np.ndarray(tuple(shape), kind, memory, start)


def aligned(size: int) -> int:
    """Return a number of bytes, rounded up to whole cache lines."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def address(array: np.ndarray) -> int:
    """Return the address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def _text(error: Callable[[], bytes]) -> str:
    return error().decode(errors="replace")


def _spin_us() -> int:
    text = os.environ.get(SPIN_VARIABLE, str(_SPIN_US))
    if not text.isdecimal() or int(text) > _MOST_SPIN_US:
        raise ConfigError(
            f"the environment variable {SPIN_VARIABLE} must be a number of microseconds from 0 to "
            f"{_MOST_SPIN_US}, but got {text!r}; unset it for {_SPIN_US}"
        )
    return int(text)
