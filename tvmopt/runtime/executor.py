"""Run a library: native code by itself, or interpreted by TVM's virtual machine."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

#: Name of the function that runs the network.
MAIN = "main"


class Spec(Protocol):
    """Shape and dtype of a tensor."""

    @property
    def shape(self) -> Sequence[int]:
        """Extent of each axis."""

    @property
    def dtype(self) -> str:
        """Its dtype, as NumPy calls it."""


class Executor(abc.ABC):
    """The functions of a library, by name, and the tensors that they take."""

    @abc.abstractmethod
    def has(self, name: str) -> bool:
        """Return whether the library has the function ``name``."""

    @abc.abstractmethod
    def bind(self, name: str, inputs: Sequence[Any]) -> Callable[[], list[Any]]:
        """Return a function that runs ``name`` on ``inputs`` and returns the output tensors.

        The next call may overwrite them.
        """

    @abc.abstractmethod
    def empty(self, spec: Spec) -> Any:
        """Return a new tensor, not initialised."""

    @abc.abstractmethod
    def write(self, tensor: Any, array: np.ndarray) -> None:
        """Copy ``array`` into a tensor of its shape and dtype."""

    @abc.abstractmethod
    def read(self, tensor: Any) -> np.ndarray:
        """Return a copy of a tensor."""

    def tensor(self, array: np.ndarray) -> Any:
        """Return a new tensor with the values of ``array``."""
        made = self.empty(_ArraySpec(array))
        self.write(made, array)
        return made


class _ArraySpec:
    def __init__(self, array: np.ndarray) -> None:
        self.shape, self.dtype = array.shape, array.dtype.name


class TvmExecutor(Executor):
    """A library that TVM's runtime has loaded.

    Args:
        module: TVM module that has the functions.
        device: Device that runs them.
    """

    def __init__(self, module: Any, device: Any) -> None:
        self.module, self.device = module, device

    def has(self, name: str) -> bool:
        """Return whether the library has the function ``name``."""
        return bool(self.module.implements_function(name))

    def empty(self, spec: Spec) -> Any:
        """Return a new tensor, not initialised."""
        import tvm

        return tvm.runtime.empty(tuple(spec.shape), spec.dtype, self.device)

    def write(self, tensor: Any, array: np.ndarray) -> None:
        """Copy ``array`` into a tensor of its shape and dtype."""
        tensor.copyfrom(np.ascontiguousarray(array).reshape(array.shape))

    def read(self, tensor: Any) -> np.ndarray:
        """Return a copy of a tensor."""
        return np.asarray(tensor.numpy())


class VirtualMachine(TvmExecutor):
    """A library that TVM's virtual machine interprets.

    Args:
        module: TVM module with the instructions.
        device: Device that runs it.
    """

    def __init__(self, module: Any, device: Any) -> None:
        from tvm.runtime.vm import VirtualMachine as Machine

        self._machine = Machine(module, device)
        super().__init__(self._machine.module, device)

    def set_instrument(self, instrument: Callable[..., int]) -> None:
        """Let the machine call ``instrument(function, name, before, result, *arguments)``.

        It is called before and after each function; 0 lets the machine go on.
        """
        self._machine.set_instrument(instrument)

    def bind(self, name: str, inputs: Sequence[Any]) -> Callable[[], list[Any]]:
        """Return a function that runs ``name``; each call returns new tensors."""
        function, arguments = self._machine[name], tuple(inputs)
        return lambda: _tensors(function(*arguments))


class RemoteVirtualMachine(VirtualMachine):
    """A virtual machine on a board. Tensors cross the connection only one by one."""

    def bind(self, name: str, inputs: Sequence[Any]) -> Callable[[], list[Any]]:
        """Return a function that runs ``name``; each call returns new tensors."""

        def run() -> list[Any]:
            self._machine.set_input(name, *inputs)
            self._machine.invoke_stateful(name)
            return _tensors(self._machine.get_outputs(name))

        return run

    def seconds(self, inputs: Sequence[Any], calls: int) -> list[float]:
        """Return the seconds of ``calls`` calls of ``MAIN`` by the board's clock."""
        self._machine.set_input(MAIN, *inputs)
        timer = self.module.time_evaluator("invoke_stateful", self.device, number=1, repeat=calls)
        return list(map(float, timer(MAIN).results))


class RemoteNative(TvmExecutor):
    """A native library on a board.

    Args:
        module: TVM module of the library.
        device: CPU of the board.
        outputs: Shape and dtype of each output.
    """

    def __init__(self, module: Any, device: Any, outputs: Sequence[Spec]) -> None:
        super().__init__(module, device)
        self._outputs = [self.empty(spec) for spec in outputs]

    def bind(self, name: str, inputs: Sequence[Any]) -> Callable[[], list[Any]]:
        """Return a function that runs ``name``; all calls write the same tensors."""
        function = self.module[name]

        def run() -> list[Any]:
            function(*inputs, *self._outputs)
            return self._outputs

        return run

    def seconds(self, inputs: Sequence[Any], calls: int) -> list[float]:
        """Return the seconds of ``calls`` calls of ``MAIN`` by the board's clock."""
        timer = self.module.time_evaluator(MAIN, self.device, number=1, repeat=calls)
        return list(map(float, timer(*inputs, *self._outputs).results))


def _tensors(result: Any) -> list[Any]:
    """Return the tensors of a result: a tensor, or a sequence of them."""
    return [result] if hasattr(result, "shape") else list(result)
