"""Worker jobs for the CPU candidates of a task: schedule, build, check and time them.

All candidates of a task share one library, because linking takes as long as compiling one
candidate.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te, tirx
from tvm.target import Target

from tvmopt.device import dtypes
from tvmopt.device.llvm import pass_config
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.reference import reference
from tvmopt.kernels.emit import emit, hint_from_dict
from tvmopt.link import isa_of, link_options
from tvmopt.measure.jobs import (
    WrongResultError,
    check_places,
    compare,
    pack,
    result_of,
    run_reference,
)
from tvmopt.measure.planted import planted_cases, replaced
from tvmopt.measure.split import split_packing
from tvmopt.measure.worker import one_line
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE

# In a network, the weights of the other layers evict a layer's weights from the caches between two
# calls. Each timed call therefore reads weights from the next slice of a pool as large as the
# network's weights. Weights below this size in bytes stay cached.
_SMALL = 4096
_MOST_POOL, _MOST_COPIED, _MOST_COPIES = 2**27, 2**25, 256
# Buffer addresses decide about cache conflicts. Activations therefore lie at this many addresses,
# and every candidate is timed on all of them.
PLACES = 4
# Maximum number of timing rounds, and the total time in seconds after which a candidate stops.
ROUNDS, _SECONDS = 40, 0.1
_MOST_CALLS = 50
# Early stopping: slowdown against the best candidate at which a candidate is dropped. Each limit
# holds until the given round.
_LOSES = {4: 1.6, 8: 1.25, 20: 1.1, ROUNDS: 1.05}


def build_batch(
    func: str, hints: list[dict[str, Any]], target: str, path: str, base: bool = True
) -> dict[str, Any]:
    """Schedule ``func`` with each hint and build all successful candidates into ``path``.

    Args:
        func: The function, serialised with :func:`tvm.ir.save_json`.
        hints: Configurations, as :meth:`Hint.to_dict` returns them.
        target: Target as JSON.
        path: Library to write.
        base: Also build the shared functions: the reference, and the functions that rewrite the
            arguments before each timed call. The first library of a function needs them.

    Returns:
        ``errors``: for each hint None, or its error. ``packed``: for each hint the indices of the
        parameters that it packs, and shapes and dtypes of the packed tensors.
    """
    original = tvm.ir.load_json(func)
    llvm = Target(json.loads(target))
    functions: dict[int, dict[str, tirx.PrimFunc]] = {}
    errors: list[str | None] = []
    packed: list[list[Any]] = []
    for index, data in enumerate(hints):
        try:
            scheduled = emit(original, hint_from_dict(data))
            parts = split_packing(finish(scheduled.mod["main"], original))
        except Exception as error:  # any failure belongs to this candidate
            errors.append(f"schedule: {one_line(error)}")
            packed.append([])
            continue
        functions[index] = {f"candidate{index}": parts.compute}
        if parts.packer is not None:
            functions[index][f"pack{index}"] = parts.packer
        errors.append(None)
        packed.append([parts.packed, parts.outputs])
    arch = hint_from_dict(hints[0]).arch
    common: dict[str, tirx.PrimFunc] = {}
    if base:
        common["reference"] = reference(original, arch)
        for place, param in enumerate(original.params[:-1]):
            common[f"produce{place}"] = _producer(param, arch.cores)
    build_right(common, functions, errors, path, lambda some, to: _build(some, llvm, to))
    return {"errors": errors, "packed": packed}


def build_right(
    common: dict[str, tirx.PrimFunc],
    candidates: Mapping[int, dict[str, tirx.PrimFunc]],
    errors: list[str | None],
    path: str,
    build: Callable[[dict[str, tirx.PrimFunc], str | None], None],
) -> None:
    """Build all functions that compile into one library.

    Args:
        common: Functions that are always part of the library.
        candidates: Functions of each candidate, by index.
        errors: Error of each candidate, by index; build errors are added.
        path: Library to write.
        build: Builds functions; writes a library when it gets a path.
    """
    try:
        build(common | {k: f for named in candidates.values() for k, f in named.items()}, path)
    except Exception:
        # Build the candidates one at a time to find the failing ones.
        good = dict(common)
        for index, named in candidates.items():
            try:
                build(named, None)
                good |= named
            except Exception as error:
                errors[index] = f"build: {one_line(error)}"
        build(good, path)


def _producer(param: tirx.Buffer, cores: int) -> tirx.PrimFunc:
    """Return a kernel that rewrites an argument in parallel, one share of the rows per core.

    In a network, another kernel has just written the activations. Part of them lies in the caches
    of other cores, and reading it costs cache-coherence traffic.
    """
    source = te.placeholder(param.shape, str(param.dtype), "source")
    copy = te.compute(param.shape, lambda *at: source[at], name="copy")
    sch = s_tir.Schedule(te.create_prim_func([source, copy]))
    loops = sch.get_loops(sch.get_sblock("copy"))
    if loops:
        share, _ = sch.split(sch.fuse(*loops), [min(cores, math.prod(map(int, param.shape))), None])
        sch.parallel(share)
    return sch.mod["main"]


def _build(functions: dict[str, tirx.PrimFunc], target: Target, path: str | None) -> None:
    if not functions:
        return
    module = tvm.IRModule(
        {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    )
    isa = isa_of(str(target))
    with tvm.transform.PassContext(config=pass_config(isa)):
        built = tvm.tirx.build(module, target=target, pipeline=CPU_PIPELINE)
    if path is not None:
        built.export_library(path, **link_options(isa))


def run_batch(
    libraries: list[str],
    arguments: list[list[Any]],
    constants: list[int],
    candidates: list[list[Any]],
    seed: int,
    rounds: int = ROUNDS,
    weight_bytes: int = 0,
    planted: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Check candidates against the reference, then time the correct ones in interleaved rounds.

    Args:
        libraries: Libraries of one function from :func:`build_batch`; the first has the reference.
        arguments: Shape and dtype of each argument, ``[[shape, dtype], ...]``. The last argument is
            the output.
        constants: Indices of the arguments that are weights.
        candidates: ``[library, index, packed parameters, packed shapes and dtypes]`` of each
            candidate.
        seed: Seed of the inputs.
        rounds: Maximum number of timing rounds.
        weight_bytes: Size in bytes of the network's weights, including this function's.
        planted: :class:`tvmopt.measure.planted.Planting` of the function; None checks random
            inputs only.

    Returns:
        For each candidate ``latency_us`` or None, number of timing ``rounds``, and ``error`` or
        None.
    """
    modules = [tvm.runtime.load_module(library) for library in libraries]
    shapes_and_types = [(tuple(shape), dtype) for shape, dtype in arguments]
    inputs, (*_, expected) = run_reference(modules[0]["reference"], shapes_and_types, seed)
    bench = _Bench(modules[0], inputs, expected, constants, weight_bytes)
    right = functools.partial(result_of, modules[0]["reference"])
    bench.cases = planted_cases(inputs, planted, seed, right)

    def kernel(library: int, index: int, packed: list[int], outputs: Any) -> Callable[[int], float]:
        return bench.kernel(modules[library], index, packed, outputs)

    return time_candidates(candidates, kernel, rounds)


def run_rivals(
    rivals: list[dict[str, Any]], seed: int, weight_bytes: int = 0
) -> list[float | None]:
    """Time candidates of several functions in interleaved rounds.

    Args:
        rivals: ``libraries`` (the function's first and the candidate's), ``arguments``,
            ``constants`` and ``candidate`` of each function, as for :func:`run_batch`.
        seed: Seed of the inputs.
        weight_bytes: As for :func:`run_batch`.

    Returns:
        Latency of each candidate in microseconds; None when its result is wrong.
    """
    kernels: dict[int, Callable[[int], float]] = {}
    for place, rival in enumerate(rivals):
        base, own = (tvm.runtime.load_module(path) for path in rival["libraries"])
        shapes_and_types = [(tuple(shape), dtype) for shape, dtype in rival["arguments"]]
        inputs, (*_, expected) = run_reference(base["reference"], shapes_and_types, seed)
        bench = _Bench(base, inputs, expected, rival["constants"], weight_bytes)
        with contextlib.suppress(WrongResultError):
            kernels[place] = bench.kernel(own, *rival["candidate"])
    timed = time_in_turns(kernels)
    return [timed[place][0] if place in timed else None for place in range(len(rivals))]


def time_candidates(
    candidates: list[list[Any]],
    kernel: Callable[..., Callable[[int], float]],
    rounds: int = ROUNDS,
    turns: Callable[..., dict[int, tuple[float, int]]] | None = None,
) -> list[dict[str, Any]]:
    """Check each candidate, then time the correct ones in interleaved rounds.

    Args:
        candidates: Arguments of ``kernel`` for each candidate, see :func:`run_batch`.
        kernel: Checks a candidate and returns its timing function for :func:`time_in_turns`; raises
            when the result is wrong.
        rounds: Maximum number of timing rounds.
        turns: Timing loop; :func:`time_in_turns` by default.

    Returns:
        As :func:`run_batch`.
    """
    results: list[dict[str, Any]] = []
    kernels: dict[int, Callable[[int], float]] = {}
    for place, candidate in enumerate(candidates):
        results.append({"latency_us": None, "rounds": 0, "error": None})
        try:
            kernels[place] = kernel(*candidate)
        except Exception as error:
            results[place]["error"] = one_line(error)
    for place, (latency_us, timed) in (turns or time_in_turns)(kernels, rounds).items():
        results[place] |= {"latency_us": latency_us, "rounds": timed}
    return results


class _Bench:
    """Arguments and expected output shared by all candidates of a function.

    Args:
        module: Library with ``produce<i>`` for each input argument.
        inputs: Value of each argument.
        expected: Expected output, which a candidate writes into the last argument.
        constants: Indices of the arguments that are weights.
        weight_bytes: See :func:`run_batch`.
    """

    def __init__(
        self,
        module: Any,
        inputs: list[np.ndarray],
        expected: np.ndarray,
        constants: list[int],
        weight_bytes: int,
    ) -> None:
        self._inputs = inputs
        self._expected = expected
        self._constants = constants
        self._weight_bytes = min(_MOST_POOL, weight_bytes)
        #: Additional inputs with the reference's outputs: NaN must be at the same positions.
        self.cases: list[tuple[list[np.ndarray], np.ndarray]] = []
        self._views: dict[tuple[int, ...], list[Any]] = {}
        # All candidates share the rotation, so that none reads data that another has just loaded.
        self._calls = itertools.count()
        sources = [tvm.runtime.tensor(array) for array in inputs]
        self._places = [[tvm.runtime.tensor(a) for a in inputs] for _ in range(PLACES)]
        self._producers = [
            [(module[f"produce{i}"], sources[i], tensors[i]) for i in self._activations]
            for tensors in self._places
        ]

    @property
    def _activations(self) -> list[int]:
        return [i for i in range(len(self._inputs) - 1) if i not in self._constants]

    def kernel(
        self, module: Any, index: int, packed: list[int], outputs: list[tuple[list[int], str]]
    ) -> Callable[[int], float]:
        """Check a candidate and return a function that times it.

        The returned function takes a number of calls and returns the mean seconds per call. Before
        each call it rewrites the activations and switches to another copy of the weights.
        """
        tensors = [tvm.runtime.tensor(array) for array in self._inputs]
        if packed:
            pack(module[f"pack{index}"], tensors, packed, outputs)
        kernel = module[f"candidate{index}"]
        kernel(*tensors)
        compare(len(tensors) - 1, tensors[-1].numpy(), self._expected)
        for arrays, wanted in self.cases:
            others = replaced(tensors, self._inputs, arrays)
            kernel(*others)
            check_places(others[-1].numpy(), wanted)
        weights = {i: tensors[i] for i in self._constants}
        copies = [weights]
        heavy = [i for i, weight in weights.items() if _bytes(weight) >= _SMALL]
        if heavy:
            views = zip(*(self._cold(weights[i]) for i in heavy), strict=False)
            copies = [weights | dict(zip(heavy, cold, strict=True)) for cold in views]

        def call(times: int) -> float:
            spent = 0.0
            for _ in range(times):
                for place, producers in zip(self._places, self._producers, strict=True):
                    arguments = list(place)
                    for i, weight in copies[next(self._calls) % len(copies)].items():
                        arguments[i] = weight
                    for produce, source, target in producers:
                        produce(source, target)
                    start = time.perf_counter()
                    kernel(*arguments)
                    spent += time.perf_counter() - start
            return spent / times / len(self._places)

        return call

    def _cold(self, weight: Any) -> list[Any]:
        """Return views like ``weight`` spread over the pool; copies if its dtype is not float32."""
        shape, size = tuple(weight.shape), _bytes(weight)
        copies = max(1, min(_MOST_COPIES, self._weight_bytes // size))
        if str(weight.dtype) != "float32":
            copies = max(1, min(copies, _MOST_COPIED // size))
            return [weight, *(tvm.runtime.tensor(weight.numpy()) for _ in range(copies - 1))]
        if shape not in self._views:
            count = math.prod(shape)
            spread = max(self._weight_bytes // 4 // copies, -(-count // 16) * 16) // 16 * 16
            pool = _pool(max(self._weight_bytes // 4, spread * copies))
            self._views[shape] = [
                tvm.runtime.from_dlpack(pool[at : at + count].reshape(shape))
                for at in range(0, copies * spread, spread)
            ]
        return self._views[shape]


def _bytes(tensor: Any) -> int:
    return math.prod(tensor.shape) * dtypes.dtype(str(tensor.dtype)).numpy.itemsize


@functools.lru_cache(maxsize=1)
def _pool(size: int) -> np.ndarray:
    """Return ``size`` random float32 numbers, aligned to 64 bytes."""
    values = np.random.default_rng(0).random(size + 16, dtype=np.float32)
    first = -(values.ctypes.data // 4) % 16
    return values[first : first + size]


def time_in_turns(
    kernels: dict[int, Callable[[int], float]], rounds: int = ROUNDS
) -> dict[int, tuple[float, int]]:
    """Time kernels in interleaved rounds.

    Interleaving spreads slow phases of the machine evenly over all kernels. Kernels far from the
    best are dropped early. A kernel's latency is the lower quartile over its rounds, because
    interference only adds time.

    Args:
        kernels: For each kernel, a function from number of calls to mean seconds per call.
        rounds: Maximum number of rounds.

    Returns:
        For each kernel its latency in microseconds and the number of rounds it was timed in.
    """
    times: dict[int, list[float]] = {place: [] for place in kernels}
    alive = list(kernels)
    for turn in range(rounds):
        for place in alive:
            times[place].append(_once(kernels[place], times[place]))
        if turn < 2:
            continue
        estimate = {place: quartile(times[place]) for place in alive}
        best = min(estimate.values(), default=math.inf)
        limit = next(share for until, share in _LOSES.items() if turn < until)
        alive = [
            place
            for place in alive
            if estimate[place] <= limit * best and sum(times[place]) < _SECONDS
        ]
    return {place: (quartile(seen) * 1e6, len(seen)) for place, seen in times.items()}


def _once(kernel: Callable[[int], float], before: list[float]) -> float:
    """Return the mean seconds per call, over as many calls as take a millisecond."""
    calls = round(1e-3 / max(before[-1], 1e-7) / PLACES) if before else 1
    return kernel(max(1, min(_MOST_CALLS, calls)))


def quartile(values: list[float]) -> float:
    """Return the lower quartile; the first of several values is a warm-up and is dropped."""
    kept = sorted(values[1:] or values)
    return kept[len(kept) // 4]
