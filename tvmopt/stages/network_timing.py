"""Time whole networks, interleaved, in a separate process.

A process that has tuned or compiled may have several of its threads on one core; a fresh one does
not.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvmopt import host
from tvmopt.build import build_library
from tvmopt.device.target import TargetSpec
from tvmopt.errors import TuneError
from tvmopt.measure.check import random_array
from tvmopt.measure.workers import Job, WorkerPool
from tvmopt.runtime.executor import MAIN
from tvmopt.runtime.library import open_library
from tvmopt.runtime.segments import register_segments

_REPEATS, _SECONDS = 60, 2.0
_TIMEOUT_S = 300.0


def measured_seconds(
    lowered: Mapping[str, tvm.IRModule], target: TargetSpec, database_dir: Path | None = None
) -> dict[str, float]:
    """Return the median latency in seconds of each lowered module, from interleaved timing.

    Args:
        lowered: Modules by name.
        target: Target to compile for.
        database_dir: Tuning database; None uses the default schedules.

    Raises:
        TuneError: When a library does not run.
    """
    host.request_amx(target.cpu_flags)
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        scratch = Path(folder)
        libraries = {}
        for number, (name, module) in enumerate(lowered.items()):
            path = scratch / f"network{number}.so"
            built = build_library(module, target, path, database_dir=database_dir)
            libraries[name] = str(built.path)
        arguments = {
            "libraries": libraries,
            "inputs": {name: _inputs(module) for name, module in lowered.items()},
            "threads": target.threads,
        }
        job = Job("tvmopt.stages.network_timing:time_libraries", arguments, _TIMEOUT_S)
        with WorkerPool(1, target.threads, scratch, "networks") as pool:
            [outcome] = pool.run([job])
    if outcome.error is not None:
        raise TuneError(
            f"the compiled networks must run to be compared, but did not: {outcome.error}"
            "; tune with granularity=operator, and report the model as a bug"
        )
    return {name: float(seconds) for name, seconds in outcome.value.items()}


def time_libraries(
    libraries: Mapping[str, str],
    inputs: Mapping[str, list[list[Any]]],
    threads: int,
) -> dict[str, float]:
    """Return the median latency of compiled networks in seconds; runs in a worker process.

    Args:
        libraries: Path of each library, by name.
        inputs: Shape and dtype of the inputs of each library: ``[[shape, dtype], ...]``.
        threads: Threads of a call.
    """
    from tvmopt.evaluate.latency import interleave

    register_segments(threads)

    def call(name: str) -> Callable[[], object]:
        rng = np.random.default_rng(0)
        executor = open_library(libraries[name], threads=threads)
        tensors = [
            executor.tensor(random_array(rng, tuple(shape), dtype, False))
            for shape, dtype in inputs[name]
        ]
        return executor.bind(MAIN, tensors)

    calls = {name: call(name) for name in libraries}
    samples = interleave(calls, _REPEATS, _SECONDS)
    return {name: statistics.median(values) for name, values in samples.items()}


def _inputs(lowered: tvm.IRModule) -> list[list[Any]]:
    return [
        [[int(e) for e in param.ty.shape], str(param.ty.dtype)] for param in lowered["main"].params
    ]
