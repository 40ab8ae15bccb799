"""Time every kernel of a whole call, in the cache state that the call leaves.

A native library takes its own timestamps (:mod:`tvmopt.codegen.timestamps`). TVM's virtual machine
calls an instrument before and after each kernel, which adds about a microsecond between kernels.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmopt.runtime.executor import MAIN, Executor, VirtualMachine
from tvmopt.runtime.native import NativeExecutor


class KernelTimer(abc.ABC):
    """Calls a network and keeps the times of its kernels.

    Attributes:
        names: Name of each kernel call, in order.
        runs: For each call of the network, an array of shape (kernels, 2): nanoseconds before and
            after each kernel.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.runs: list[np.ndarray] = []

    @abc.abstractmethod
    def __call__(self) -> Sequence[Any]:
        """Run the network once, keep the times, and return the output tensors."""


class NativeTimer(KernelTimer):
    """Times a native library that was built with timestamps.

    Args:
        executor: The library, loaded.
        inputs: Input tensors.
    """

    def __init__(self, executor: NativeExecutor, inputs: Sequence[Any]) -> None:
        super().__init__()
        self._run = executor.bind(MAIN, inputs)
        self.names, self._buffer = executor.timestamps()

    def __call__(self) -> Sequence[Any]:
        """Run the network once, keep the times, and return the output tensors."""
        self._buffer[...] = 0
        outputs = self._run()
        self.runs.append(self._buffer.copy())
        return outputs


class MachineTimer(KernelTimer):
    """Times a library that TVM's virtual machine interprets, on the CPU.

    Args:
        executor: The library, loaded.
        inputs: Input tensors.
    """

    def __init__(self, executor: VirtualMachine, inputs: Sequence[Any]) -> None:
        super().__init__()
        executor.set_instrument(self._instrument)
        self._run = executor.bind(MAIN, inputs)
        self._began, self._calls = 0, list[tuple[str, int, int]]()

    def __call__(self) -> Sequence[Any]:
        """Run the network once, keep the times, and return the output tensors."""
        self._calls.clear()
        outputs = self._run()
        self.names = [name for name, *_ in self._calls]
        self.runs.append(np.array([times for _, *times in self._calls]).reshape(-1, 2))
        return outputs

    def _instrument(self, _function: object, name: str, before: bool, *_others: object) -> int:
        now = time.perf_counter_ns()
        if before:
            self._began = time.perf_counter_ns()
        elif not name.startswith("vm."):
            self._calls.append((name, self._began, now))
        return 0  # TVM's code for: run the call


def kernel_timer(executor: Executor, inputs: Sequence[Any]) -> KernelTimer:
    """Return the timer of a loaded library."""
    if isinstance(executor, NativeExecutor):
        return NativeTimer(executor, inputs)
    assert isinstance(executor, VirtualMachine)
    return MachineTimer(executor, inputs)
