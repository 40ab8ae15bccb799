"""Run a network on arrays of the caller, without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tvmopt.errors import ConfigError
from tvmopt.runtime.executor import MAIN
from tvmopt.runtime.fallback import FALLBACK, holds_nan
from tvmopt.runtime.metadata import ModelMetadata, TensorSpec
from tvmopt.runtime.native import ALIGNMENT_BYTES, NativeExecutor, address, aligned_empty
from tvmopt.runtime.outputs import Outputs
from tvmopt.runtime.sizes import of_size


class BoundCall:
    """A network that reads and writes fixed arrays; created by :meth:`CompiledModel.bind`.

    ::

        call = model.bind()
        call.inputs["image"][...] = frame
        print(call()["logits"])

    Not thread-safe: each thread binds its own arrays. When an output has NaN, a network with
    Winograd convolutions runs again with direct ones (:mod:`.fallback`).

    Args:
        executor: The network, loaded.
        metadata: Its metadata.
        inputs: Arrays for some of the inputs, by name; the others are allocated.
        outputs: The same for the outputs.
        size: Which of its sizes.

    Attributes:
        inputs: Input arrays by name; write into them before a call.
        input_arrays: The same arrays, in order.
        first_input: The first of them; absent for a model without inputs.
        function: Runs the network without its fallback on ``arguments``; returns whether it failed.
        arguments: Pointer to the addresses of all arrays.
        failure: Returns the error of a call that failed.
        outputs: Output arrays, which the next call overwrites.
        has_fallback: Whether the library has direct convolutions for Winograd ones.

    Raises:
        ConfigError: When an array has another name, shape or dtype, or the kernels cannot use it.
    """

    __slots__ = (
        "_fallback", "_run", "_specs", "arguments", "failure", "first_input", "first_output",
        "function", "has_fallback", "input_arrays", "inputs", "outputs",
    )  # fmt: skip

    def __init__(
        self,
        executor: NativeExecutor,
        metadata: ModelMetadata,
        inputs: Mapping[str, np.ndarray] | None = None,
        outputs: Mapping[str, np.ndarray] | None = None,
        size: int = 0,
    ) -> None:
        metadata = metadata.at(size)
        self.inputs = _arrays("input", metadata.inputs, inputs or {})
        results = _arrays("output", metadata.outputs, outputs or {})
        self.input_arrays = tuple(self.inputs.values())
        if self.input_arrays:
            self.first_input = self.input_arrays[0]
        self.outputs = Outputs.of(results.values(), tuple(results))
        self.first_output = next(iter(results.values()))
        self._specs = metadata.outputs
        tensors = [list(self.inputs.values()), list(results.values())]
        self._run = executor.bind(of_size(MAIN, size), *tensors)
        self.function, self.arguments = self._run.function, self._run.arguments
        self.failure = self._run.failure
        direct = of_size(FALLBACK, size)
        self.has_fallback = executor.has(direct)
        self._fallback = executor.bind(direct, *tensors) if self.has_fallback else None

    def renew_output(self, number: int) -> None:
        """Let all further calls write an output into a new array, and leave the old one alone."""
        array = aligned_empty(self._specs[number].shape, self._specs[number].dtype)
        self.outputs[number] = array
        self.first_output = next(iter(self.outputs))
        for run in (self._run, self._fallback):
            if run is not None:
                run.replace_output(number, array)

    def __call__(self, *, direct: bool = False) -> Outputs:
        """Run the network; return :attr:`outputs`.

        Args:
            direct: Whether to run only the fallback, which must exist.
        """
        if not direct and self.function(self.arguments):
            raise self.failure()
        if self._fallback is not None and (direct or holds_nan(self.outputs)):
            self._fallback()
        return self.outputs


def _arrays(
    kind: str, specs: Sequence[TensorSpec], given: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return an array for each of ``specs``, by name."""
    if unknown := sorted(set(given) - {spec.name for spec in specs}):
        names = ", ".join(spec.name for spec in specs)
        raise ConfigError(f"{kind}s must be of the model, which has {names}, but got {unknown}")
    for spec in specs:
        if spec.name in given:
            _check(kind, spec, given[spec.name])
    return {
        spec.name: given[spec.name] if spec.name in given else aligned_empty(spec.shape, spec.dtype)
        for spec in specs
    }


def _check(kind: str, spec: TensorSpec, array: np.ndarray) -> None:
    named = f"{kind} {spec.name!r}"
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"{named} must be a NumPy array, but got {type(array).__name__}")
    if array.shape != spec.shape or array.dtype != np.dtype(spec.dtype):
        raise ConfigError(
            f"{named} must be {spec.dtype} of shape {spec.shape}, but got {array.dtype} of "
            f"{array.shape}"
        )
    usable = array.flags.c_contiguous and array.flags.writeable
    if not usable or address(array) % ALIGNMENT_BYTES:
        raise ConfigError(
            f"{named} must be contiguous, writable and start at a multiple of {ALIGNMENT_BYTES} "
            "bytes to be used in place, but is not; allocate it by tvmopt.runtime.aligned_empty"
        )
