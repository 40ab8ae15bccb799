"""What a worker does to a task's candidates: schedule and build them, check them, time them.

All candidates of a task share one library, since linking one takes as long as compiling one.
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
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.reference import reference
from tvmopt.kernels.emit import emit
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

# Between two calls of a layer a network reads the weights of all others. So each call takes weights
# from the next place of a pool as large as the network's; smaller ones than this stay in the cache.
_SMALL = 4096
_MOST_POOL, _MOST_COPIED, _MOST_COPIES = 2**27, 2**25, 256
# Where a buffer lies decides how it shares the caches: activations lie in this many places, and all
# candidates are timed on all of them.
PLACES = 4
# Rounds that one candidate is timed in, unless it loses: all, or fewer once calls took this long.
ROUNDS, _SECONDS = 40, 0.1
_MOST_CALLS = 50
# Candidates this much slower than the best so far are timed no further: by the round that it holds
# until.
_LOSES = {4: 1.6, 8: 1.25, 20: 1.1, ROUNDS: 1.05}


def build_batch(
    func: str, hints: list[dict[str, Any]], target: str, path: str, base: bool = True
) -> dict[str, Any]:
    """Schedule ``func`` by each hint and build all that succeed into ``path``.

    Args:
        func: The function, as :func:`tvm.ir.save_json` writes it.
        hints: Configurations, as :meth:`CpuHint.to_dict` gives them.
        target: JSON of the target.
        path: Library to write.
        base: Whether to build what all candidates are checked and timed with, too: a reference and
            what writes the arguments anew. The first library of a function needs it.

    Returns:
        ``errors``: for each hint None, or why there is no candidate; ``packed``: for each hint the
        indices of the parameters it packs, and the shapes and types of what these become.
    """
    original = tvm.ir.load_json(func)
    llvm = Target(json.loads(target))
    functions: dict[int, dict[str, tirx.PrimFunc]] = {}
    errors: list[str | None] = []
    packed: list[list[Any]] = []
    for index, data in enumerate(hints):
        try:
            scheduled = emit(original, CpuHint.from_dict(data))
            parts = split_packing(finish(scheduled.mod["main"], original))
        except Exception as error:  # whatever goes wrong is the candidate's own
            errors.append(f"schedule: {one_line(error)}")
            packed.append([])
            continue
        functions[index] = {f"candidate{index}": parts.compute}
        if parts.packer is not None:
            functions[index][f"pack{index}"] = parts.packer
        errors.append(None)
        packed.append([parts.packed, parts.outputs])
    arch = CpuHint.from_dict(hints[0]).arch
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
    """Build into one library what can be built.

    Args:
        common: What the library has in any case.
        candidates: By number, the functions of each candidate.
        errors: By number, what is wrong with each; those that cannot be built are added.
        path: Library to write.
        build: Builds functions; writes a library where it is given a path.
    """
    try:
        build(common | {k: f for named in candidates.values() for k, f in named.items()}, path)
    except Exception:
        # Find whose fault it was, one by one.
        good = dict(common)
        for index, named in candidates.items():
            try:
                build(named, None)
                good |= named
            except Exception as error:
                errors[index] = f"build: {one_line(error)}"
        build(good, path)


def _producer(param: tirx.Buffer, cores: int) -> tirx.PrimFunc:
    """Write an argument anew, each core its share of the rows.

    In a network another kernel has just written it: what a core reads of another core's share
    comes through their common cache, and costs what it costs.
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
    """Check candidates against the reference, then time those that are right, in turns.

    Args:
        libraries: What :func:`build_batch` wrote, of one function; the first has the reference.
        arguments: Shape and type of each argument: ``[[shape, dtype], ...]``; the last is written.
        constants: Indices of the arguments that are weights.
        candidates: ``[library, index, packed parameters, what they become]`` of each candidate.
        seed: Seed of the inputs.
        rounds: Most rounds to time them in.
        weight_bytes: Bytes of the weights that are read between two calls in use, this one's too.
        planted: :class:`tvmopt.measure.planted.Planting` of the function; None checks on random
            numbers only.

    Returns:
        For each candidate ``latency_us`` or None, ``rounds`` timed, and ``error`` or None.
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
    """Time candidates of several functions in turns, as if they were candidates of one.

    Args:
        rivals: ``libraries`` (the function's first, the candidate's), ``arguments``, ``constants``
            and ``candidate`` of each, as of :func:`run_batch`.
        seed: Seed of the inputs.
        weight_bytes: See :func:`run_batch`.

    Returns:
        Latency of each in microseconds; None where it is wrong.
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
    """Make a kernel of each candidate, which checks it, and time those that are right in turns.

    Args:
        candidates: Arguments of ``kernel`` for each, see :func:`run_batch`.
        kernel: Gives what :func:`time_in_turns` calls, or raises when the candidate is wrong.
        rounds: Most rounds to time them in.
        turns: How to time them; :func:`time_in_turns` by default.

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
    """The arguments that all candidates of a function are run on.

    Args:
        module: Library with ``produce<i>`` for each argument that is read.
        inputs: Value of each argument.
        expected: The right result, which the last argument takes.
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
        #: Further inputs, each with the reference's result: NaN must be at the same places.
        self.cases: list[tuple[list[np.ndarray], np.ndarray]] = []
        self._views: dict[tuple[int, ...], list[Any]] = {}
        # All candidates take turns with the places, or one would find what another has just read.
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
        """Seconds of one call of a candidate, the mean over several, once its result is right.

        Before each call the activations are written anew, and the weights are those of another
        copy.
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
        """Tensors like ``weight`` all over the pool; copies of it where the pool's type differs."""
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
    """``size`` random numbers; the start is aligned for vectors."""
    values = np.random.default_rng(0).random(size + 16, dtype=np.float32)
    first = -(values.ctypes.data // 4) % 16
    return values[first : first + size]


def time_in_turns(
    kernels: dict[int, Callable[[int], float]], rounds: int = ROUNDS
) -> dict[int, tuple[float, int]]:
    """Latency in microseconds of each kernel, and how many rounds it took part in.

    A kernel is a function of how often to call it, and gives the mean seconds of one call.

    Rounds over all kernels, so that a slow moment of the machine hits all alike; those far from
    the best drop out early. A kernel's latency is the lower quartile of its rounds: whatever else
    the machine does only ever adds time.
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
    """Seconds of one call, the mean over as many as last a millisecond."""
    calls = round(1e-3 / max(before[-1], 1e-7) / PLACES) if before else 1
    return kernel(max(1, min(_MOST_CALLS, calls)))


def quartile(values: list[float]) -> float:
    """The lower quartile, without the first value when there are others: it warms up."""
    kept = sorted(values[1:] or values)
    return kept[len(kept) // 4]
