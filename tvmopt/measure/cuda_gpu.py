"""CudaGpu: build kernels on all cores, check and time them on this machine's first GPU.

Building needs no GPU. Timing runs in another process: a CUDA fault makes every later call of its
process fail, so that process is ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from tvmopt.device import dtypes
from tvmopt.device.cuda import CudaArch, probe
from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.reference import reference
from tvmopt.kernels.cuda.toolchain.modules import embed_cubins
from tvmopt.link import link_options
from tvmopt.measure.cuda_check import (
    check_equal,
    check_no_place_lost,
    check_same_places,
    difference,
    filled,
    repeated,
    some_of,
)
from tvmopt.measure.cuda_graph import GraphTimer
from tvmopt.measure.device import Bench, Device, Inputs
from tvmopt.measure.interleave import Timing
from tvmopt.measure.planted import planted_cases
from tvmopt.measure.time_sustained import time_sustained

# Timing rounds that suffice to rank candidates: a GPU's speed varies less than a CPU's.
_ROUNDS = 20


@dataclasses.dataclass(frozen=True)
class CudaGpu(Device):
    """This machine's first GPU."""

    most_builders = 16
    splits_builds = True  # CUDA compilation dominates
    prepares = True
    threads = 1

    arch: CudaArch
    build_timeout_s: float = 60.0
    run_timeout_s: float = 60.0

    def check_target(self, target: Target, strategy: str) -> None:
        """Raise unless ``target`` has the compute capability of this machine's first GPU."""
        present = probe()  # raises when there is no GPU
        if present.arch != str(target.attrs["arch"]):
            raise ConfigError(
                f"strategy {strategy!r} measures on this machine's GPU, {present.name} "
                f"({present.arch}), but the target is {target.attrs['arch']}; use target=cuda, or "
                "strategy=default"
            )

    def shared_functions(self, func: tirx.PrimFunc) -> dict[str, tirx.PrimFunc]:
        """Return ``reference``, and ``compare`` that compares two outputs on the GPU."""
        result = func.params[-1]
        count = math.prod(map(int, result.shape))
        return {
            "reference": reference(func, self.arch),
            "compare": difference(count, str(result.dtype)),
        }

    def build(self, functions: Mapping[str, tirx.PrimFunc], path: str | None) -> None:
        """Compile kernels to machine code; link a library when there is a ``path``."""
        with embed_cubins(self.arch):
            built = build_kernels(dict(functions), self.arch)
        if path is not None:
            built.export_library(path, **link_options())

    @contextlib.contextmanager
    def bench(self, libraries: Sequence[str], inputs: Inputs, candidates: int) -> Iterator[Bench]:
        """Load the libraries in this process.

        Every call of a candidate reads the same arguments; arguments that fit are read from L2.
        """
        modules = [tvm.runtime.load_module(library) for library in libraries]
        checker = _CudaChecker(modules[0], inputs)
        with GraphTimer() as timer:
            yield lambda library, index, *_: checker.timing(
                modules[library][f"candidate{index}"], timer
            )

    def time(self, kernels: Mapping[int, Timing], rounds: int) -> dict[int, tuple[float, int]]:
        """Time checked candidates; see :func:`tvmopt.measure.time_sustained.time_sustained`."""
        return time_sustained(kernels, min(rounds, _ROUNDS))

    def prepare(self, inputs: Inputs) -> None:
        """Create the inputs of the next :meth:`bench`."""
        _random_inputs(inputs, False, tvm.runtime.cuda(0))

    def run_limit_s(self, candidates: int) -> float:
        """Return the timeout, which does not depend on the number of candidates."""
        return self.run_timeout_s

    def has_died(self, errors: Sequence[str | None]) -> bool:
        """Return whether any error says that the worker died or must end."""
        return any("worker" in (error or "") for error in errors)

    def is_faulted(self, errors: Sequence[str | None]) -> bool:
        """Return whether any error is a CUDA fault."""
        return any("CUDA" in (error or "") for error in errors)


# Cache of the most recent inputs, which the next candidates likely read; key: shapes and seed.
_cached: dict[str, list[Any]] = {}


def _random_inputs(inputs: Inputs, positive: bool, device: Any) -> list[Any]:
    key = repr((inputs.shapes, inputs.seed, positive))
    if key not in _cached:
        _cached.clear()  # first free the old inputs, which may be large
        _cached[key] = [
            filled(shape, dtype, inputs.seed + place, positive, device)
            for place, (shape, dtype) in enumerate(inputs.shapes[:-1])
        ]
    return _cached[key]


class _CudaChecker:
    """Checks candidates of one function against its reference, on the GPU.

    Args:
        module: Library with the shared functions.
        inputs: Arguments of the function.
    """

    def __init__(self, module: Any, inputs: Inputs) -> None:
        arguments, seed = inputs.shapes, inputs.seed
        self._device = tvm.runtime.cuda(0)
        self._compare = module["compare"]
        self._shape, self._dtype = arguments[-1]
        self._count = math.prod(self._shape)
        own = dtypes.dtype(self._dtype).kernel_tolerance
        self._tolerance = own if inputs.tolerance is None else inputs.tolerance
        # Signed inputs exercise both sides of an activation. Their logarithm is NaN, which would
        # match any other NaN, so fall back to positive inputs.
        for positive in (False, True):
            self._inputs = _random_inputs(inputs, positive, self._device)
            self._wanted = tvm.runtime.empty(self._shape, self._dtype, self._device)
            module["reference"](*self._inputs, self._wanted)
            self._device.sync()
            if self._is_finite():
                break
        #: Planted inputs, each with the reference's output.
        self._cases: list[tuple[list[Any], Any]] = []
        hosts = [
            some_of(shape, dtype, seed + place, positive)
            for place, (shape, dtype) in enumerate(arguments[:-1])
        ]

        def right(arrays: list[np.ndarray]) -> np.ndarray:
            changed = [
                tensor if array is host else repeated(array, shape, dtype, self._device)
                for tensor, array, host, (shape, dtype) in zip(
                    self._inputs, arrays, hosts, arguments[:-1], strict=True
                )
            ]
            result = tvm.runtime.empty(self._shape, self._dtype, self._device)
            module["reference"](*changed, result)
            self._device.sync()
            self._cases.append((changed, result))
            return self._some(result)

        planted_cases(hosts, inputs.planted, seed, right)
        self._spreads = bool(inputs.planted and inputs.planted["spreads"])
        self._got = tvm.runtime.empty(self._shape, self._dtype, self._device)
        size = self._count * dtypes.dtype(self._dtype).numpy.itemsize
        # The bit pattern is NaN in every float dtype, and -1 as an integer.
        blank = np.full(min(size, 1 << 20), 0xFF, np.uint8)
        self._blank = repeated(blank, (size,), "uint8", self._device)

    def _is_finite(self) -> bool:
        head = self._some(self._wanted)
        return head.dtype.kind in "biu" or bool(np.isfinite(head.astype(np.float64)).all())

    def _some(self, result: Any) -> np.ndarray:
        """Return the leading elements of a result as an array, at most 2**20 of them."""
        flat = result._create_view((self._count,))
        return flat._create_view((min(self._count, 1 << 20),)).numpy()

    def timing(self, function: Any, timer: GraphTimer) -> Timing:
        """Check a candidate and return its timing function."""
        flat = (self._count,)
        got = self._got._create_view(flat)
        self._launch(function, self._inputs, timer)
        check_equal(self._compare, got, self._wanted._create_view(flat), self._tolerance)
        for inputs, wanted in self._cases:
            self._launch(function, inputs, timer)
            if self._spreads:
                check_no_place_lost(self._some(self._got), self._some(wanted))
            else:
                check_same_places(self._compare, got, wanted._create_view(flat))
        return timer.timing(lambda: function(*self._inputs, self._got))

    def _launch(self, function: Any, inputs: Sequence[Any], timer: GraphTimer) -> None:
        """Run the candidate once on a cleared output and wait for it."""
        self._blank.copyto(self._got._create_view(self._blank.shape, "uint8"))
        self._device.sync()  # the timer's stream does not synchronise with others
        with timer.launching():
            function(*inputs, self._got)
        timer.wait()
