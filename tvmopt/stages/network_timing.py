"""Time whole networks, interleaved, in a process of their own.

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
from tvmopt.transform.output_specs import OutputSpec, output_specs

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
        libraries: dict[str, str] = {}
        native = {}
        for number, (name, module) in enumerate(lowered.items()):
            path = scratch / f"network{number}.so"
            built = build_library(module, target, path, database_dir=database_dir)
            libraries[name], native[name] = str(built.path), built.native
        arguments = {
            "libraries": libraries,
            "native": native,
            "inputs": {name: _inputs(module) for name, module in lowered.items()},
            "outputs": {name: _outputs(module) for name, module in lowered.items()},
            "threads": target.threads,
        }
        job = Job("tvmopt.stages.network_timing:time_libraries", arguments, _TIMEOUT_S)
        with WorkerPool(1, target.threads, scratch, "networks") as pool:
            [outcome] = pool.run([job])
    if outcome.error is not None:
        raise TuneError(
            f"the compiled networks must run to be compared, but did not: {outcome.error}"
        )
    return {name: float(seconds) for name, seconds in outcome.value.items()}


def time_libraries(
    libraries: Mapping[str, str],
    native: Mapping[str, bool],
    inputs: Mapping[str, list[list[Any]]],
    outputs: Mapping[str, list[list[Any]]],
    threads: int,
) -> dict[str, float]:
    """Return the median latency of compiled networks in seconds; runs in a worker process.

    Args:
        libraries: Path of each library, by name.
        native: Whether it is native code.
        inputs: Shape and dtype of the inputs of each library: ``[[shape, dtype], ...]``.
        outputs: The same for its outputs.
        threads: Threads of a call.
    """
    from tvmopt.evaluate.latency import interleave

    register_segments(threads)

    def call(name: str) -> Callable[[], object]:
        rng = np.random.default_rng(0)
        made = [OutputSpec(tuple(shape), dtype) for shape, dtype in outputs[name]]
        executor = open_library(libraries[name], made, native=native[name], threads=threads)
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


def _outputs(lowered: tvm.IRModule) -> list[list[Any]]:
    return [[list(spec.shape), spec.dtype] for spec in output_specs(lowered)]
