"""A pretended A100, for whole workflows on a machine without a GPU.

Python imports this module at its start when this folder is on PYTHONPATH, in every process of a
command: the command itself, its stages and their workers. It replaces what needs the device, and
nothing above it:

- the driver's answers (:mod:`tvmopt.device.cuda_runtime`, ``probe``),
- :class:`CudaGpu`: candidates are scheduled, but not compiled; their times follow from their rank,
- ``build_library``: schedules and records are the GPU's, the code is for the CPU,
- the clock of a network: the CPU's time.

With ``PRETENDED_GPU_FULL=bfloat16``, networks that hold this dtype do not fit into its memory.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm

from tvmopt.device import cuda, cuda_graph, cuda_runtime
from tvmopt.device.gpus import GPUS
from tvmopt.runtime import callers, network

GPU = GPUS["nvidia-a100"]
NAME = "NVIDIA A100-SXM4-80GB (pretended), driver for CUDA 13.0"
_MEMORY_STEP = 50_000_000  # bytes that a model takes
_free = [GPU.memory_bytes]
_too_large: list[bool] = [False]  # whether the network built last fits not


class HostNetwork:
    """Runs a network on the CPU, and tells the time of a GPU."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run

    def __call__(self) -> Any:
        if _too_large[-1]:
            raise RuntimeError("InternalError: CUDA: out of memory")
        return self._run()

    def launch(self) -> None:
        self._run()

    def seconds(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            self._run()
        return (time.perf_counter() - start) / calls


def _network(executor: Any, inputs: Any, on_gpu: bool | str, size: int = 0) -> Any:
    run = _real_network(executor, inputs, False, size)
    return HostNetwork(run) if on_gpu else run


def _free_bytes() -> int:
    _free[0] -= _MEMORY_STEP
    return _free[0]


_real_network = network.network
network.network = callers.network = _network
cuda_runtime.problem = lambda: ""  # type: ignore[assignment]
cuda_runtime.describe = lambda: NAME
cuda_runtime.missing = lambda sm: (
    "" if sm == GPU.sm else f"a GPU of compute capability {sm // 10}.{sm % 10}"
)
cuda.probe = lambda: GPU
cuda_graph.free_bytes = _free_bytes
tvm.cuda = tvm.cpu
tvm.runtime.cuda = tvm.runtime.cpu


def _replace_compiler() -> None:
    """Replace what a process with TVM's compiler has, besides."""
    from tvmopt import build
    from tvmopt.device.target import resolve_target
    from tvmopt.kernels.cuda.toolchain import compiler, modules
    from tvmopt.measure import cuda_gpu

    real = build.build_library

    def build_library(mod: Any, target: Any, path: Any, **options: Any) -> Any:
        if target.gpu is None:
            return real(mod, target, path, **options)
        sized = build.SizeModule(mod.clone(), options.get("database_dir"))
        schedule = options.get("schedule", "default")
        full = os.environ.get("PRETENDED_GPU_FULL", "")
        _too_large.append(bool(full) and full in mod.script())
        of_gpu = build.schedule_size(sized, target, target.to_tvm(), schedule)
        host = resolve_target("host", 1)
        built = real(mod, host, path, schedule=schedule, native=False, quick=True)
        return build.BuiltLibrary(
            path, of_gpu.sources, built.compile_s, {}, of_gpu.records, native=False
        )

    build.build_library = build_library
    compiler.version = lambda: "nvcc (pretended)"
    modules.check_tools = lambda: None

    def build_nothing(self: Any, functions: Any, path: str | None) -> None:
        if path is not None:
            Path(path).write_text("\n".join(functions))

    @contextlib.contextmanager
    def bench(self: Any, libraries: Any, inputs: Any, candidates: int) -> Any:
        yield lambda library, index, *_: lambda calls: 1e-5 * (1 + index)

    gpu: Any = cuda_gpu.CudaGpu
    gpu.build, gpu.bench = build_nothing, bench
    gpu.shared_functions = lambda self, func: {}
    gpu.prepare = lambda self, inputs: None
    gpu.time = lambda self, kernels, rounds: {
        place: (1e6 * timing(1), rounds) for place, timing in kernels.items()
    }


if os.environ.get("TVM_USE_RUNTIME_LIB") != "1":
    _replace_compiler()
