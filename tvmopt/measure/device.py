"""Device: the interface of what candidates are built for, checked and timed on.

Callers, in the order of a measurement::

    device.check_target(...)     this machine can measure code for the target, or an error
    device.build(functions)      in worker processes that build
    device.bench(libraries)      in the worker process that times: load, run the reference
    bench(candidate)             check one candidate against the reference
    device.time(kernels)         time the correct candidates, interleaved

:mod:`tvmopt.measure.devices` lists the implementations.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from tvm import tirx
from tvm.target import Target

from tvmopt.measure.interleave import Timing, time_interleaved

#: Checks a candidate: library, index, packed arguments, packed shapes and dtypes -> its timing
#: function. Raises when the candidate's result is wrong.
Bench = Callable[[int, int, list[int], list[tuple[list[int], str]]], Timing]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Arguments of one function, from which the worker creates its inputs; JSON-serialisable.

    Attributes:
        arguments: Shape and dtype of each argument, ``[[shape, dtype], ...]``. The last argument is
            the output.
        constants: Indices of the arguments that are weights.
        seed: Seed of the inputs.
        planted: :class:`tvmopt.measure.planted.Planting` of the function; None checks random inputs
            only.
        weight_bytes: Size in bytes of the network's weights, including this function's.
        tolerance: Largest difference from the reference, relative to the largest reference value;
            None for that of the output's dtype. Only GPUs have others (TF32).
        exact_pairs: Whether int8 weights have exact pairs, see :mod:`tvmopt.kernels.exact_pairs`.
    """

    arguments: list[list[Any]]
    constants: list[int] = dataclasses.field(default_factory=list)
    seed: int = 0
    planted: dict[str, Any] | None = None
    weight_bytes: int = 0
    tolerance: float | None = None
    exact_pairs: bool = False

    @property
    def shapes(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of each argument, as tuples."""
        return [(tuple(shape), dtype) for shape, dtype in self.arguments]

    @property
    def small(self) -> list[int]:
        """Indices of the arguments whose integers are drawn from half of the range of int8."""
        return self.constants if self.exact_pairs else []


@dataclasses.dataclass(frozen=True)
class Device(abc.ABC):
    """A device that builds, checks and times candidates.

    Attributes:
        arch: Descriptor of its CPU or GPU.
        build_timeout_s: Build timeout in seconds per candidate.
        run_timeout_s: Timeout in seconds for checking and timing one function's candidates.
        most_builders: Maximum number of worker processes that build.
        splits_builds: Whether the candidates of one function are divided among all builders. They
            share one library otherwise.
        drifts: Whether its speed changes from second to second, so that latencies are comparable
            only when they were timed together.
        prepares: Whether :meth:`prepare` does anything.
        threads: Threads of a kernel.
    """

    most_builders: ClassVar[int]
    splits_builds: ClassVar[bool] = False
    drifts: ClassVar[bool] = False
    prepares: ClassVar[bool] = False

    arch: Any
    build_timeout_s: float = 15.0
    run_timeout_s: float = 20.0

    @property
    @abc.abstractmethod
    def threads(self) -> int:
        """Threads of a kernel."""

    @abc.abstractmethod
    def check_target(self, target: Target, strategy: str) -> None:
        """Raise unless this machine can build and the device can time code for ``target``.

        Raises:
            ConfigError: When the target is of another kind or another device.
            EnvironmentSetupError: When no linker exists for it.
        """

    @abc.abstractmethod
    def shared_functions(self, func: tirx.PrimFunc) -> dict[str, tirx.PrimFunc]:
        """Return what :meth:`bench` needs besides candidates: ``reference``, and others by name."""

    @abc.abstractmethod
    def build(self, functions: Mapping[str, tirx.PrimFunc], path: str | None) -> None:
        """Compile functions; write a library when there is a ``path``."""

    @abc.abstractmethod
    def bench(
        self, libraries: Sequence[str], inputs: Inputs, candidates: int
    ) -> AbstractContextManager[Bench]:
        """Load the libraries of one function and run its reference.

        Args:
            libraries: The libraries; the first has the shared functions.
            inputs: Arguments of the function.
            candidates: Number of candidates to check and time.
        """

    def time(self, kernels: Mapping[int, Timing], rounds: int) -> dict[int, tuple[float, int]]:
        """Time checked candidates; see :func:`tvmopt.measure.interleave.time_interleaved`."""
        return time_interleaved(kernels, rounds)

    def prepare(self, inputs: Inputs) -> None:  # noqa: B027  # optional
        """Create inputs ahead of :meth:`bench`, while other processes build."""

    def run_limit_s(self, candidates: int) -> float:
        """Return the timeout in seconds of one function's :meth:`bench` and :meth:`time`."""
        return self.run_timeout_s + candidates

    def has_died(self, errors: Sequence[str | None]) -> bool:
        """Return whether the errors of one job mean that its process died."""
        return len(set(errors)) == 1 and None not in errors

    def is_faulted(self, errors: Sequence[str | None]) -> bool:
        """Return whether the process of a job with these errors can run nothing any more."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict for :func:`tvmopt.measure.devices.device_from_dict`."""
        fields = dataclasses.asdict(self) | {"arch": self.arch.to_dict()}
        return {"type": type(self).__name__, **fields}
