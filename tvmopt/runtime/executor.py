"""Run a library: by the function that was compiled ahead of time, or by TVM's virtual machine."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Protocol

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
    """The functions of a library, by name.

    Attributes:
        module: TVM module that has them.
    """

    def __init__(self, module: Any) -> None:
        self.module = module

    def has(self, name: str) -> bool:
        """Return whether the library has the function ``name``."""
        return bool(self.module.implements_function(name))

    @abc.abstractmethod
    def bind(self, name: str, inputs: Sequence[Any]) -> Callable[[], list[Any]]:
        """Return a function that runs ``name`` on ``inputs`` and returns the output tensors.

        The next call may overwrite them.
        """

    @abc.abstractmethod
    def seconds(self, inputs: Sequence[Any], calls: int, least_ms: int = 0) -> list[float]:
        """Return the seconds of ``calls`` calls of ``MAIN``, by the clock of the device.

        Args:
            inputs: Input tensors.
            calls: Number of samples.
            least_ms: Least milliseconds of calls that a sample is the mean of.
        """


class AheadOfTime(Executor):
    """A library whose functions take the outputs, too; they allocate nothing.

    Args:
        module: TVM module.
        device: The CPU that runs it.
        outputs: Shape and dtype of each output.
    """

    def __init__(self, module: Any, device: Any, outputs: Sequence[Spec]) -> None:
        super().__init__(module)
        self._device, self._specs = device, outputs

    def bind(self, name: str, inputs: Sequence[Any]) -> Callable[[], list[Any]]:
        """Return a function that runs ``name``; all its calls write the same tensors."""
        function, outputs = self.module[name], self._outputs()
        arguments = (*inputs, *outputs)

        def run() -> list[Any]:
            function(*arguments)
            return outputs

        return run

    def seconds(self, inputs: Sequence[Any], calls: int, least_ms: int = 0) -> list[float]:
        """Return the seconds of ``calls`` calls."""
        timer = self.module.time_evaluator(
            MAIN, self._device, number=1, repeat=calls, min_repeat_ms=least_ms
        )
        return list(map(float, timer(*inputs, *self._outputs()).results))

    def _outputs(self) -> list[Any]:
        import tvm

        return [
            tvm.runtime.empty(tuple(spec.shape), spec.dtype, self._device) for spec in self._specs
        ]


class VirtualMachine(Executor):
    """A library that TVM's virtual machine interprets.

    Args:
        module: TVM module with the instructions.
        device: Device that runs it.
    """

    def __init__(self, module: Any, device: Any) -> None:
        from tvm.runtime.vm import VirtualMachine as Machine

        self._machine, self._device = Machine(module, device), device
        super().__init__(self._machine.module)

    def bind(self, name: str, inputs: Sequence[Any]) -> Callable[[], list[Any]]:
        """Return a function that runs ``name``; each call returns new tensors."""
        function, arguments = self._machine[name], tuple(inputs)
        return lambda: _tensors(function(*arguments))

    def seconds(self, inputs: Sequence[Any], calls: int, least_ms: int = 0) -> list[float]:
        """Return the seconds of ``calls`` calls."""
        timer = self._machine.time_evaluator(
            MAIN, self._device, number=1, repeat=calls, min_repeat_ms=least_ms
        )
        return list(map(float, timer(*inputs).results))


class RemoteVirtualMachine(VirtualMachine):
    """A virtual machine on a board. Tensors cross the connection only one by one."""

    def bind(self, name: str, inputs: Sequence[Any]) -> Callable[[], list[Any]]:
        """Return a function that runs ``name``; each call returns new tensors."""

        def run() -> list[Any]:
            self._machine.set_input(name, *inputs)
            self._machine.invoke_stateful(name)
            return _tensors(self._machine.get_outputs(name))

        return run

    def seconds(self, inputs: Sequence[Any], calls: int, least_ms: int = 0) -> list[float]:
        """Return the seconds of ``calls`` calls."""
        self._machine.set_input(MAIN, *inputs)
        timer = self.module.time_evaluator(
            "invoke_stateful", self._device, number=1, repeat=calls, min_repeat_ms=least_ms
        )
        return list(map(float, timer(MAIN).results))


def open_executor(
    module: Any, device: Any, outputs: Sequence[Spec], *, remote: bool = False
) -> Executor:
    """Return the executor of a library.

    Args:
        module: TVM module of the library.
        device: Device to run it on.
        outputs: Shape and dtype of each output.
        remote: Whether the module is on a board.
    """
    if module.implements_function(MAIN):
        return AheadOfTime(module, device, outputs)
    return (RemoteVirtualMachine if remote else VirtualMachine)(module, device)


def _tensors(result: Any) -> list[Any]:
    """Return the tensors of a result: a tensor, or a sequence of them."""
    return [result] if hasattr(result, "shape") else list(result)
