"""Time the compiled library of one layer, on this machine's CPU or GPU.

A GPU is timed in another process: a CUDA fault makes every later call of its process fail.
"""

from __future__ import annotations

import abc
import contextlib
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt import host
from tvmopt.device import dtypes
from tvmopt.device.target import TargetSpec
from tvmopt.errors import TuneError
from tvmopt.measure.workers import Job, WorkerPool
from tvmopt.runtime.executor import MAIN, Executor
from tvmopt.runtime.library import open_library
from tvmopt.runtime.network import network

#: Shape and dtype of each input of a layer.
InputShapes = Sequence[tuple[Sequence[int], str]]

_REPEATS = 5
_LEAST_S = 0.005
_TIMEOUT_S = 60.0


class LayerTimer(abc.ABC):
    """Times libraries with the one function ``main``."""

    @abc.abstractmethod
    def seconds(self, library: Path, inputs: InputShapes, *, native: bool) -> float:
        """Return the median seconds of a call on random inputs.

        Args:
            library: The library.
            inputs: Shape and dtype of each input.
            native: Whether the library is native code.
        """


@contextlib.contextmanager
def layer_timer(target: TargetSpec) -> Iterator[LayerTimer]:
    """Yield the timer of a target that this machine can run."""
    host.request_amx(target.cpu_flags)
    if target.gpu is None:
        yield HostLayerTimer(target.threads)
        return
    with (
        tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch,
        WorkerPool(1, target.threads, Path(scratch), "layers") as worker,
    ):
        yield GpuLayerTimer(worker)


class HostLayerTimer(LayerTimer):
    """Times on this machine's CPU, in this process.

    Args:
        threads: Threads of a call.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def seconds(self, library: Path, inputs: InputShapes, *, native: bool) -> float:
        """Return the median seconds of a call on random inputs."""
        executor = open_library(str(library), threads=self._threads, native=native)
        run = executor.bind(MAIN, _random_tensors(executor, inputs))
        return _median_seconds(lambda calls: _seconds_on_host(run, calls))


class GpuLayerTimer(LayerTimer):
    """Times on this machine's first GPU.

    Args:
        worker: The process that times; ended after a CUDA fault.
    """

    def __init__(self, worker: WorkerPool) -> None:
        self._worker = worker

    def seconds(self, library: Path, inputs: InputShapes, *, native: bool) -> float:
        """Return the median seconds of a call on random inputs, by the GPU's clock.

        Raises:
            TuneError: When the layer does not run.
        """
        arguments = {"library": str(library), "inputs": [[list(s), d] for s, d in inputs]}
        job = Job(f"{__name__}:gpu_layer_seconds", arguments, _TIMEOUT_S)
        [outcome] = self._worker.run([job])
        if outcome.error is not None:
            if "CUDA" in outcome.error:
                self._worker.close()  # the next job starts another process
            raise TuneError(
                f"a layer must run to be timed, but did not: {outcome.error}"
                "; report the model as a bug"
            )
        return float(outcome.value)


def gpu_layer_seconds(library: str, inputs: list[list[Any]]) -> float:
    """Return the median seconds of a call on this machine's GPU; runs in a worker process."""
    import tvm

    executor = open_library(library, threads=1, native=False, device=tvm.cuda(0))
    run = network(executor, _random_tensors(executor, [(s, d) for s, d in inputs]), True)
    return _median_seconds(run.seconds)  # type: ignore[attr-defined]


def _random_tensors(executor: Executor, inputs: InputShapes) -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        executor.tensor(rng.uniform(0, 1, tuple(shape)).astype(dtypes.dtype(dtype).numpy))
        for shape, dtype in inputs
    ]


def _median_seconds(seconds: Callable[[int], float]) -> float:
    """Return the median over samples, each the mean of calls in a row.

    Args:
        seconds: Function from a number of calls to their mean seconds.
    """
    seconds(1)
    calls = max(1, math.ceil(_LEAST_S / max(seconds(1), 1e-9)))
    return statistics.median(seconds(calls) for _ in range(_REPEATS))


def _seconds_on_host(run: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
