"""Run a network on arrays of the caller, without a copy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvmopt.errors import ConfigError
from tvmopt.runtime.executor import MAIN, AheadOfTime
from tvmopt.runtime.fallback import FALLBACK, holds_nan
from tvmopt.runtime.metadata import ModelMetadata, TensorSpec
from tvmopt.runtime.outputs import Outputs

_ALIGNMENT_BYTES = 64


class BoundCall:
    """A network that reads and writes fixed arrays; created by :meth:`CompiledModel.bind`.

    ::

        call = model.bind()
        call.inputs["image"][...] = frame
        print(call()["logits"])

    Not thread-safe: each thread binds arrays of its own. When an output has NaN, a network with
    Winograd convolutions runs again with direct ones (:mod:`.fallback`).

    Args:
        executor: The network, loaded.
        metadata: Its metadata.
        prepare: Called before each call.
        inputs: Arrays for some of the inputs, by name; the others are allocated.
        outputs: The same for the outputs.

    Attributes:
        inputs: Input arrays by name; write into them before a call.
        outputs: Output arrays, which the next call overwrites.

    Raises:
        ConfigError: When an array has another name, shape or dtype, or the kernels cannot use it.
    """

    def __init__(
        self,
        executor: AheadOfTime,
        metadata: ModelMetadata,
        prepare: Callable[[], None],
        inputs: Mapping[str, np.ndarray] | None = None,
        outputs: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._prepare = prepare
        self.inputs = _arrays("input", metadata.inputs, inputs or {})
        results = _arrays("output", metadata.outputs, outputs or {})
        self.outputs = Outputs(results.values(), tuple(results))
        tensors = [[_tensor(a) for a in side.values()] for side in (self.inputs, results)]
        self._run = executor.bind(MAIN, *tensors)
        has_fallback = executor.has(FALLBACK)
        self._fallback = executor.bind(FALLBACK, *tensors) if has_fallback else None

    def __call__(self) -> Outputs:
        """Run the network; return :attr:`outputs`."""
        self._prepare()
        self._run()
        if self._fallback is not None and holds_nan(self.outputs):
            self._fallback()
        return self.outputs


def aligned_empty(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return a new array, not initialised, that starts at a cache line, as kernels require.

    Args:
        shape: Its shape.
        dtype: NumPy name of its dtype.
    """
    import tvm

    return np.from_dlpack(tvm.runtime.empty(tuple(shape), dtype))


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
    address = array.__array_interface__["data"][0]
    usable = array.flags.c_contiguous and array.flags.writeable
    if not usable or address % _ALIGNMENT_BYTES:
        raise ConfigError(
            f"{named} must be contiguous, writable and start at a multiple of {_ALIGNMENT_BYTES} "
            "bytes to be used in place, but is not; allocate it by tvmopt.runtime.aligned_empty"
        )


def _tensor(array: np.ndarray) -> Any:
    import tvm

    return tvm.runtime.from_dlpack(array)
