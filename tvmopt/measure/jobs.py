"""Worker jobs for one MetaSchedule candidate: build it, check it against the reference, time it."""

from __future__ import annotations

import functools
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from tvmopt.compare import same_non_finite
from tvmopt.device import dtypes
from tvmopt.device.llvm import pass_config
from tvmopt.errors import TvmoptError
from tvmopt.link import isa_of, link_options
from tvmopt.measure.planted import planted_cases, replaced
from tvmopt.measure.split import split_packing
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE

_REPEAT_MS = 20.0
_REPEATS = 3
# Candidates slower than the best so far by this factor get no accurate timing.
_HOPELESS = 3.0


class WrongResultError(TvmoptError):
    """A candidate's output differs from the reference."""


def build(module: str, target: str, path: str) -> None:
    """Compile a module and export a shared library.

    Weight packing becomes a separate function, which :func:`run` calls once, as in a build of the
    whole network. A file beside the library stores which arguments it packs.

    Args:
        module: The module, serialised with :func:`tvm.ir.save_json`.
        target: Target as JSON.
        path: Library to write.
    """
    parts = split_packing(tvm.ir.load_json(module)["main"])
    functions = {"main": parts.compute}
    if parts.packer is not None:
        functions["pack"] = parts.packer
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    isa = isa_of(target)
    with tvm.transform.PassContext(config=pass_config(isa)):
        built = tvm.tirx.build(
            tvm.IRModule(named), target=Target(json.loads(target)), pipeline=CPU_PIPELINE
        )
    built.export_library(path, **link_options(isa))
    packing_file(path).write_text(json.dumps([parts.packed, parts.outputs]))


def packing_file(library: str) -> Path:
    """Return the file in which :func:`build` stores the packed arguments of a library."""
    return Path(library).with_suffix(".packing.json")


def reference(
    library: str,
    arguments: list[list[Any]],
    seed: int,
    planted: dict[str, Any] | None = None,
) -> float:
    """Run the unscheduled function and cache its results for :func:`run` in the same process.

    Args:
        library: Library of the unscheduled function.
        arguments: Shape and dtype of each argument.
        seed: Seed of the inputs.
        planted: :class:`tvmopt.measure.planted.Planting` of the function, or None.

    Returns:
        Seconds that the run took.
    """
    start = time.perf_counter()
    _reference(library, json.dumps(arguments), seed, json.dumps(planted))
    return time.perf_counter() - start


def run(
    library: str,
    reference_library: str,
    arguments: list[list[Any]],
    seed: int,
    best_us: float | None = None,
    planted: dict[str, Any] | None = None,
) -> float:
    """Check a candidate on random and on planted inputs, then time it.

    Args:
        library: Library of the candidate.
        reference_library: Library of the unscheduled function.
        arguments: Shape and dtype of each argument, ``[[shape, dtype], ...]``.
        seed: Seed of the inputs.
        best_us: Best latency so far in microseconds; much slower candidates are timed roughly.
        planted: :class:`tvmopt.measure.planted.Planting` of the function; None plants nothing.

    Returns:
        Latency of one call in microseconds: the median of three means.

    Raises:
        WrongResultError: When an argument differs from the reference run.
    """
    kind = json.dumps(planted)
    inputs, expected, cases = _reference(reference_library, json.dumps(arguments), seed, kind)
    module = tvm.runtime.load_module(library)
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    packed, outputs = json.loads(packing_file(library).read_text())
    if packed:
        pack(module["pack"], tensors, packed, outputs)
    kernel = module["main"]
    kernel(*tensors)
    for index, (tensor, wanted) in enumerate(zip(tensors, expected, strict=True)):
        if index not in packed:
            compare(index, tensor.numpy(), wanted)
    for arrays, result in cases:
        others = replaced(tensors, inputs, arrays)
        kernel(*others)
        check_places(others[-1].numpy(), result)

    rough_s = min(_timed(kernel, tensors) for _ in range(2))
    if best_us is not None and rough_s * 1e6 > _HOPELESS * best_us:
        return rough_s * 1e6
    number = max(1, math.ceil(_REPEAT_MS * 1e-3 / max(rough_s, 1e-8)))
    timer = module.time_evaluator("main", tvm.cpu(), number=number, repeat=_REPEATS)
    return float(np.median(timer(*tensors).results)) * 1e6


def pack(
    packer: Any,
    tensors: list[Any],
    packed: list[int],
    outputs: list[tuple[list[int], str]],
    device: Any = None,
) -> None:
    """Replace the tensors at the indices ``packed`` by their packed versions.

    Args:
        packer: The packing function.
        tensors: Arguments of the compute function; modified in place.
        packed: Indices of the arguments to pack.
        outputs: Shape and dtype of the packed tensors.
        device: Device of the tensors; None for the local CPU.
    """
    made = [tvm.runtime.empty(tuple(shape), dtype, device) for shape, dtype in outputs]
    packer(*(tensors[i] for i in packed), *made)
    for i, tensor in zip(packed, made, strict=True):
        tensors[i] = tensor


# Keep a few tasks: the search alternates between tasks, and a reference run is slow.
@functools.lru_cache(maxsize=4)
def _reference(
    library: str, arguments: str, seed: int, planted: str
) -> tuple[list[np.ndarray], list[np.ndarray], list[tuple[list[np.ndarray], np.ndarray]]]:
    kernel = tvm.runtime.load_module(library)["main"]
    inputs, outputs = run_reference(kernel, _parse(arguments), seed)
    right = functools.partial(result_of, kernel)
    return inputs, outputs, planted_cases(inputs, json.loads(planted), seed, right)


def result_of(kernel: Any, arrays: list[np.ndarray], device: Any = None) -> np.ndarray:
    """Run ``kernel`` and return the last of ``arrays``, its output."""
    tensors = [tvm.runtime.tensor(array, device) for array in arrays]
    kernel(*tensors)
    return tensors[-1].numpy()


def run_reference(
    kernel: Any,
    arguments: list[tuple[tuple[int, ...], str]],
    seed: int,
    device: Any = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Create random inputs and run the reference ``kernel`` on them.

    Args:
        kernel: The reference.
        arguments: Shape and dtype of each argument.
        seed: Seed of the inputs.
        device: Device of the kernel; None for the local CPU.

    Returns:
        The inputs, and the value of every argument after the run.
    """
    inputs: list[np.ndarray] = []
    outputs: list[np.ndarray] = []
    # Signed inputs exercise both sides of an activation. Their square root or logarithm is NaN,
    # which would match any other NaN, so fall back to positive inputs.
    for positive in (False, True):
        rng = np.random.default_rng(seed)
        inputs = [random_array(rng, shape, dtype, positive) for shape, dtype in arguments]
        tensors = [tvm.runtime.tensor(array, device) for array in inputs]
        kernel(*tensors)
        outputs = [tensor.numpy() for tensor in tensors]
        if all(_is_finite(array) for array in outputs):
            break
    return inputs, outputs


def _parse(arguments: str) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(shape), dtype) for shape, dtype in json.loads(arguments)]


def random_array(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, positive: bool
) -> np.ndarray:
    """Return a random array of ``shape`` whose values are safe for any operator.

    Wide integers are 0 or 1, because they may index another argument.
    """
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    row = dtypes.dtype(dtype)
    if dtype in dtypes.BYTE_INTEGERS:
        return rng.integers(row.lowest, row.highest + 1, shape).astype(row.numpy)
    if row.is_integer:
        return rng.integers(0, 2, shape).astype(row.numpy)
    values = rng.uniform(0.1, 1.0, shape) if positive else rng.standard_normal(shape)
    return values.astype(row.numpy)


def _is_finite(array: np.ndarray) -> bool:
    return array.dtype.kind in "biu" or bool(np.isfinite(array.astype(np.float64)).all())


def compare(index: int, got: np.ndarray, wanted: np.ndarray) -> None:
    """Raise :class:`WrongResultError` unless ``got`` equals ``wanted`` within tolerance."""
    tolerance = dtypes.dtype(wanted.dtype.name).kernel_tolerance
    if not tolerance:
        wrong = np.count_nonzero(got != wanted)
        if wrong:
            raise WrongResultError(f"wrong result: argument {index} differs at {wrong} elements")
        return
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    scale = float(np.abs(wanted[finite]).max(initial=1e-6))
    error = float(np.abs(got[finite] - wanted[finite]).max(initial=0.0))
    same_specials = np.array_equal(got[~finite], wanted[~finite], equal_nan=True)
    # The negated comparison makes a NaN fail.
    if not (error <= tolerance * scale and same_specials):
        raise WrongResultError(
            f"wrong result: argument {index} is off by {error:.3g}, allowed {tolerance * scale:.3g}"
        )


def check_places(got: np.ndarray, wanted: np.ndarray) -> None:
    """Raise :class:`WrongResultError` unless NaN and infinities are at the same positions.

    For narrow floats only NaN counts, because different rounding may overflow to infinity.
    """
    wide = wanted.dtype.name in dtypes.WIDE_FLOATS
    if not same_non_finite(got, wanted, infinities=wide):
        raise WrongResultError(
            "wrong result: NaN and infinities of planted inputs are not where the reference has "
            f"them: {_counts(got)} instead of {_counts(wanted)}"
        )


def _counts(array: np.ndarray) -> str:
    wide = array.astype(np.float64)
    return f"{np.isnan(wide).sum()} NaN and {np.isinf(wide).sum()} infinities"


def _timed(kernel: Any, tensors: list[Any]) -> float:
    start = time.perf_counter()
    kernel(*tensors)
    return time.perf_counter() - start
