"""Worker jobs for the GPU candidates of a task: emit, build, check and time kernels.

Building needs no GPU. Timing runs in another process: a CUDA fault makes every later call of its
process fail, so that process is ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from tvmopt.device import dtypes
from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.reference import reference
from tvmopt.kernels.cuda.toolchain.modules import embed_cubins
from tvmopt.kernels.emit import emit_kernel, hint_from_dict
from tvmopt.link import link_options
from tvmopt.measure.batch import ROUNDS, build_right, time_candidates
from tvmopt.measure.cuda_check import (
    check_equal,
    check_same_places,
    difference,
    filled,
    repeated,
    some_of,
)
from tvmopt.measure.cuda_graph import GraphTimer
from tvmopt.measure.planted import planted_cases
from tvmopt.measure.sustained import time_under_load
from tvmopt.measure.worker import one_line


def build_batch(
    func: str, hints: list[dict[str, Any]], arch: dict[str, Any], path: str, base: bool = True
) -> dict[str, Any]:
    """Emit the kernel of each hint and build all successful ones into ``path``.

    Args:
        func: The function, serialised with :func:`tvm.ir.save_json`.
        hints: Configurations, as :meth:`Hint.to_dict` returns them.
        arch: ``CudaArch.to_dict()`` of the GPU.
        path: Library to write.
        base: Also build the reference and the comparison kernel; the first library of a function
            needs them.

    Returns:
        ``errors``: for each hint None, or its error.
    """
    original, gpu = tvm.ir.load_json(func), CudaArch(**arch)
    functions: dict[int, dict[str, tirx.PrimFunc]] = {}
    errors: list[str | None] = []
    for index, data in enumerate(hints):
        try:
            functions[index] = {f"candidate{index}": emit_kernel(original, hint_from_dict(data))}
        except Exception as error:  # any failure belongs to this candidate
            errors.append(f"schedule: {one_line(error)}")
        else:
            errors.append(None)
    common: dict[str, tirx.PrimFunc] = {}
    if base:
        result = original.params[-1]
        common["reference"] = reference(original, gpu)
        common["compare"] = difference(math.prod(map(int, result.shape)), str(result.dtype))
    build_right(common, functions, errors, path, lambda some, to: _build(some, gpu, to))
    return {"errors": errors}


def warm_up(arch: dict[str, Any]) -> None:
    """Load the compiler and build a small kernel, so that the first build has no start-up cost."""
    gpu = CudaArch(**arch)
    _build({"main": reference(difference(1, "float32"), gpu)}, gpu, None)


def _build(functions: dict[str, tirx.PrimFunc], arch: CudaArch, path: str | None) -> None:
    if not functions:
        return
    with embed_cubins(arch):
        built = build_kernels(functions, arch)
    if path is not None:
        built.export_library(path, **link_options())


def run_batch(
    libraries: list[str],
    arguments: list[list[Any]],
    candidates: list[list[Any]],
    seed: int,
    rounds: int = ROUNDS,
    planted: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Check candidates against the reference, then time the correct ones in interleaved rounds.

    Every call of a candidate reads the same arguments; arguments that fit are read from L2.

    Args:
        libraries: Libraries of one function from :func:`build_batch`; the first has the reference.
        arguments: Shape and dtype of each argument, ``[[shape, dtype], ...]``. The last argument is
            the output.
        candidates: ``[library, index]`` of each candidate.
        seed: Seed of the inputs.
        rounds: Maximum number of timing rounds.
        planted: :class:`tvmopt.measure.planted.Planting` of the function; None checks random
            inputs only.

    Returns:
        For each candidate ``latency_us`` or None, number of timing ``rounds``, and ``error`` or
        None.
    """
    modules = [tvm.runtime.load_module(library) for library in libraries]
    shapes_and_types = [(tuple(shape), dtype) for shape, dtype in arguments]
    bench = _CudaBench(modules[0], shapes_and_types, seed, planted)
    with GraphTimer() as timer:

        def kernel(library: int, index: int) -> Callable[[int], float]:
            return bench.kernel(modules[library][f"candidate{index}"], timer)

        return time_candidates(candidates, kernel, rounds, time_under_load)


# Cache of the most recent inputs, which the next candidates likely read; key: shapes and seed.
_made: dict[str, list[Any]] = {}


def prepare(arguments: list[list[Any]], seed: int) -> None:
    """Create the inputs for :func:`run_batch` while the builders work."""
    shapes_and_types = [(tuple(shape), dtype) for shape, dtype in arguments]
    _inputs(shapes_and_types, seed, False, tvm.runtime.cuda(0))


def _inputs(
    arguments: Sequence[tuple[tuple[int, ...], str]], seed: int, positive: bool, device: Any
) -> list[Any]:
    key = repr((arguments, seed, positive))
    if key not in _made:
        _made.clear()  # first free the old inputs, which may be large
        _made[key] = [
            filled(shape, dtype, seed + place, positive, device)
            for place, (shape, dtype) in enumerate(arguments[:-1])
        ]
    return _made[key]


class _CudaBench:
    """Arguments and expected output shared by all candidates of a function."""

    def __init__(
        self,
        module: Any,
        arguments: Sequence[tuple[tuple[int, ...], str]],
        seed: int,
        planted: dict[str, Any] | None,
    ) -> None:
        self._device = tvm.runtime.cuda(0)
        self._compare = module["compare"]
        self._shape, self._dtype = arguments[-1]
        self._count = math.prod(self._shape)
        # Signed inputs exercise both sides of an activation. Their logarithm is NaN, which would
        # match any other NaN, so fall back to positive inputs.
        for positive in (False, True):
            self._inputs = _inputs(arguments, seed, positive, self._device)
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
            inputs = [
                tensor if array is host else repeated(array, shape, dtype, self._device)
                for tensor, array, host, (shape, dtype) in zip(
                    self._inputs, arrays, hosts, arguments[:-1], strict=True
                )
            ]
            result = tvm.runtime.empty(self._shape, self._dtype, self._device)
            module["reference"](*inputs, result)
            self._device.sync()
            self._cases.append((inputs, result))
            return self._some(result)

        planted_cases(hosts, planted, seed, right)
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

    def kernel(self, function: Any, timer: GraphTimer) -> Callable[[int], float]:
        """Check a candidate and return a function that times it."""
        flat = (self._count,)
        got = self._got._create_view(flat)
        self._launch(function, self._inputs, timer)
        check_equal(self._compare, got, self._wanted._create_view(flat), self._dtype)
        for inputs, wanted in self._cases:
            self._launch(function, inputs, timer)
            check_same_places(self._compare, got, wanted._create_view(flat))
        return timer.kernel(lambda: function(*self._inputs, self._got))

    def _launch(self, function: Any, inputs: Sequence[Any], timer: GraphTimer) -> None:
        """Run the candidate once on a cleared output and wait for it."""
        self._blank.copyto(self._got._create_view(self._blank.shape, "uint8"))
        self._device.sync()  # the timer's stream does not synchronise with others
        with timer.launching():
            function(*inputs, self._got)
        timer.wait()
