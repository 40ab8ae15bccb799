"""What a worker does to a task's candidates: schedule and build them, check them, time them.

All candidates of a task share one library, since linking one takes as long as compiling one.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te, tirx
from tvm.target import Target

from tvmopt.arch.cpu import CpuArch
from tvmopt.measure.jobs import compare, numpy_dtype, pack, run_reference
from tvmopt.measure.split import split_packing
from tvmopt.measure.worker import one_line
from tvmopt.schedule import Hint, NotApplicable, apply_hint, finish

# Weights are taken from all over a pool that exceeds the caches: between two calls of a layer a
# network reads the weights of all others. Smaller ones than this are left in the cache.
_POOL_BYTES = 32 * 1024 * 1024
_COPIED_BYTES = 24 * 1024 * 1024
_MOST_COPIES, _SMALL = 64, 4096
# Rounds that one candidate is timed in, unless it loses: all, or fewer once calls took this long.
_ROUNDS, _SECONDS = 40, 0.12
_MOST_CALLS = 50
# Candidates this much slower than the best so far are timed no further: by the round that it holds
# until.
_LOSES = {4: 1.6, 8: 1.25, 20: 1.1, _ROUNDS: 1.05}


def build_batch(func: str, hints: list[dict[str, Any]], target: str, path: str) -> dict[str, Any]:
    """Schedule ``func`` by each hint and build all that succeed, with a reference, into ``path``.

    Args:
        func: The function, as :func:`tvm.ir.save_json` writes it.
        hints: Configurations, as :meth:`Hint.to_dict` gives them.
        target: JSON of the target.
        path: Library to write.

    Returns:
        ``errors``: for each hint None, or why there is no candidate; ``packed``: for each hint the
        indices of the parameters it packs, and the shapes of what they are packed into.
    """
    original = tvm.ir.load_json(func)
    llvm = Target(json.loads(target))
    functions: dict[int, dict[str, tirx.PrimFunc]] = {}
    errors: list[str | None] = []
    packed: list[list[Any]] = []
    for index, data in enumerate(hints):
        try:
            scheduled = apply_hint(original, Hint.from_dict(data))
            parts = split_packing(finish(scheduled.mod["main"], original))
        except Exception as error:  # whatever goes wrong is the candidate's own
            errors.append(f"schedule: {one_line(error)}")
            packed.append([])
            continue
        functions[index] = {f"candidate{index}": parts.compute}
        if parts.packer is not None:
            functions[index][f"pack{index}"] = parts.packer
        errors.append(None)
        packed.append([parts.packed, parts.shapes])
    arch = Hint.from_dict(hints[0]).arch
    base = {"reference": _reference(original, arch)}
    for place, param in enumerate(original.params[:-1]):
        base[f"produce{place}"] = _producer(param, arch.cores)
    try:
        _build(base | {k: f for named in functions.values() for k, f in named.items()}, llvm, path)
    except Exception:
        # Find whose fault it was, one by one.
        good = dict(base)
        for index, named in functions.items():
            try:
                _build(named, llvm, None)
                good |= named
            except Exception as error:
                errors[index] = f"build: {one_line(error)}"
        _build(good, llvm, path)
    return {"errors": errors, "packed": packed}


def _reference(func: tirx.PrimFunc, arch: CpuArch) -> tirx.PrimFunc:
    """``func`` by the plainest template that is not hopelessly slow."""
    for template in ("contraction", "elementwise", "fallback"):
        try:
            return apply_hint(func, Hint(template, arch)).mod["main"]
        except NotApplicable:
            continue
    return func


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
    module = tvm.IRModule(
        {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    )
    built = tvm.tirx.build(module, target=target, pipeline="s_tir")
    if path is not None:
        built.export_library(path)


def run_batch(
    library: str,
    arguments: list[list[Any]],
    constants: list[int],
    candidates: list[list[Any]],
    seed: int,
    best_us: float | None = None,
) -> list[dict[str, Any]]:
    """Check candidates against the reference, then time those that are right, in turns.

    Args:
        library: What :func:`build_batch` wrote.
        arguments: Shape and type of each argument: ``[[shape, dtype], ...]``; the last is written.
        constants: Indices of the arguments that are weights.
        candidates: ``[index, packed parameters, their shapes]`` of each candidate.
        seed: Seed of the inputs.
        best_us: Best latency so far of an earlier batch.

    Returns:
        For each candidate ``latency_us`` or None, ``rounds`` timed, and ``error`` or None.
    """
    module = tvm.runtime.load_module(library)
    shapes_and_types = [(tuple(shape), dtype) for shape, dtype in arguments]
    inputs, (*_, expected) = run_reference(module["reference"], shapes_and_types, seed)
    results: list[dict[str, Any]] = []
    kernels: dict[int, Callable[[int], float]] = {}
    for place, (index, packed, shapes) in enumerate(candidates):
        results.append({"latency_us": None, "rounds": 0, "error": None})
        try:
            kernels[place] = _checked(
                module, index, packed, shapes, inputs, expected, constants
            )
        except Exception as error:
            results[place]["error"] = one_line(error)
    for place, (latency_us, rounds) in time_in_turns(kernels, best_us).items():
        results[place] |= {"latency_us": latency_us, "rounds": rounds}
    return results


def _checked(
    module: Any,
    index: int,
    packed: list[int],
    shapes: list[list[int]],
    inputs: list[np.ndarray],
    expected: np.ndarray,
    constants: list[int],
) -> Callable[[int], float]:
    """Seconds of one call of a candidate, the mean over several, once its result is right.

    Before each call the activations are written anew, and the weights are those of another copy.
    """
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    if packed:
        pack(module[f"pack{index}"], tensors, packed, shapes)
    kernel = module[f"candidate{index}"]
    kernel(*tensors)
    compare(len(tensors) - 1, tensors[-1].numpy(), expected)
    sets = [tensors]
    heavy = [i for i in constants if _bytes(tensors[i]) >= _SMALL]
    if heavy:
        views = [_cold_views(tensors[i]) for i in heavy]
        for cold in zip(*views, strict=False):
            other = list(tensors)
            for i, view in zip(heavy, cold, strict=True):
                other[i] = view
            sets.append(other)
    cycle = itertools.cycle(sets[1:] or sets)
    producers = [
        (module[f"produce{i}"], tvm.runtime.tensor(inputs[i]), tensors[i])
        for i in range(len(tensors) - 1)
        if i not in constants
    ]

    def call(times: int) -> float:
        spent = 0.0
        for _ in range(times):
            arguments = next(cycle)
            for produce, source, target in producers:
                produce(source, target)
            start = time.perf_counter()
            kernel(*arguments)
            spent += time.perf_counter() - start
        return spent / times

    return call


def _bytes(tensor: Any) -> int:
    return math.prod(tensor.shape) * np.dtype(numpy_dtype(str(tensor.dtype))).itemsize


@functools.cache
def _pool() -> np.ndarray:
    """Random numbers; the start is aligned for vectors."""
    values = np.random.default_rng(0).random(_POOL_BYTES // 4 + 16, dtype=np.float32)
    return values[-(values.ctypes.data // 4) % 16 :]


def _cold_views(weight: Any) -> list[Any]:
    """Tensors like ``weight`` all over the pool; copies of it where the pool's type is another."""
    shape, size = tuple(weight.shape), _bytes(weight)
    if str(weight.dtype) != "float32":
        copies = min(_MOST_COPIES, -(-_COPIED_BYTES // size))
        return [tvm.runtime.tensor(weight.numpy()) for _ in range(copies)]
    count = math.prod(shape)
    step = -(-count // 16) * 16
    pool = _pool()
    places = min(_MOST_COPIES, len(pool) // step)
    spread = (len(pool) // max(1, places)) // 16 * 16
    return [
        tvm.runtime.from_dlpack(pool[n * spread : n * spread + count].reshape(shape))
        for n in range(places)
    ]


def time_in_turns(
    kernels: dict[int, Callable[[int], float]], best_us: float | None = None
) -> dict[int, tuple[float, int]]:
    """Latency in microseconds of each kernel, and how many rounds it took part in.

    A kernel is a function of how often to call it, and gives the mean seconds of one call.

    Rounds over all kernels, so that a slow moment of the machine hits all alike; those far from
    the best drop out early. A kernel's latency is the lower quartile of its rounds: whatever else
    the machine does only ever adds time.
    """
    times: dict[int, list[float]] = {place: [] for place in kernels}
    alive = list(kernels)
    for turn in range(_ROUNDS):
        for place in alive:
            times[place].append(_once(kernels[place], times[place]))
        if turn < 2:
            continue
        estimate = {place: quartile(times[place]) for place in alive}
        best = min(min(estimate.values(), default=math.inf), (best_us or math.inf) * 1e-6)
        limit = next(share for until, share in _LOSES.items() if turn < until)
        alive = [
            place
            for place in alive
            if estimate[place] <= limit * best and sum(times[place]) < _SECONDS
        ]
    return {place: (quartile(seen) * 1e6, len(seen)) for place, seen in times.items()}


def _once(kernel: Callable[[int], float], before: list[float]) -> float:
    """Seconds of one call, the mean over as many as last a millisecond."""
    calls = max(1, min(_MOST_CALLS, round(1e-3 / max(before[-1], 1e-7)))) if before else 1
    return kernel(calls)


def quartile(values: list[float]) -> float:
    """The lower quartile, without the first value when there are others: it warms up."""
    kept = sorted(values[1:] or values)
    return kept[len(kept) // 4]
