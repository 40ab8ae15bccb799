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

#: Environment variable: microseconds that an idle thread of a model spins before it sleeps.
SPIN_VARIABLE = "TVMOPT_SPIN_US"
#: Alignment of tensors in bytes; kernels read and write whole cache lines.
ALIGNMENT_BYTES = 64

_SPIN_US, _MOST_SPIN_US = 1000, 1_000_000
_PREFIX = "tvmopt_"
_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_CONFIGURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_long)
_ERROR = ctypes.CFUNCTYPE(ctypes.c_char_p)


@dataclasses.dataclass(frozen=True)
class NativeTensor:
    """Shape and dtype of an input or output of a library."""

    shape: tuple[int, ...]
    dtype: str


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

    def has(self, name: str) -> bool:
        """Return whether the library has the function ``name``."""
        try:
            self._function(name, _RUN)
        except OSError:
            return False
        return True

    def bind(
        self, name: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> Callable[[], list[np.ndarray]]:
        """Return a function that runs ``name``; all its calls write the same arrays.

        Args:
            name: Name of the function.
            inputs: Input tensors.
            outputs: Output tensors; None allocates them.
        """
        function, error = self._function(name, _RUN), self._error
        results = [self.empty(spec) for spec in self._outputs] if outputs is None else list(outputs)
        tensors = (*inputs, *results)
        addresses = (ctypes.c_void_p * len(tensors))(*map(address, tensors))

        def run() -> list[np.ndarray]:
            if function(addresses):
                raise EnvironmentSetupError(
                    f"the model must get the threads and memory it needs, but: {_text(error)}"
                )
            return results

        run.keep = (self._library, tensors)  # type: ignore[attr-defined]
        return run

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
        text = ctypes.c_char_p(_ctypes.dlsym(self._library._handle, f"{_PREFIX}tensors")).value
        for line in (text or b"").decode().splitlines():
            side, dtype, _, *extents = line.split()
            yield side, NativeTensor(tuple(map(int, extents)), dtype)

    def _function(self, name: str, prototype: Any) -> Any:
        """Return a function of the library; it does not keep the library loaded.

        ``ctypes`` functions that are found by an attribute of a library keep it for ever.

        Raises:
            OSError: When the library has none of this name.
        """
        return prototype(_ctypes.dlsym(self._library._handle, _PREFIX + name))


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
