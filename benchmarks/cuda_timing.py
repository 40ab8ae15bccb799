"""Worker jobs of ``cuda_ops``: build dlight's kernels, check and time the contenders of a row.

Jobs run in worker processes, so that a kernel that faults ends only its worker.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from tvmopt.errors import last_line

# Longest duration of one CUDA graph, and most calls in it.
_GRAPH_S, _MAX_CALLS = 5e-3, 50
_ROUNDS = 15
_BURST_S = 0.02  # duration of one timed burst of calls
# Contenders this many times slower than the fastest are timed separately, in fewer rounds.
_SLOW_RATIO, _SLOW_ROUNDS = 3.0, 5


def inputs_of(torch: Any, arguments: list[list[Any]], seed: int = 0) -> list[Any]:
    """Random GPU tensors for all arguments except the last, which is the output."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    tensors = []
    for shape, dtype in arguments[:-1]:
        if dtype.startswith("uint32"):
            words = torch.randint(-(2**31), 2**31, shape, device="cuda", generator=generator)
            tensors.append(words.to(torch.int32).view(torch.uint32))
        elif "int" in dtype:
            low = 0 if dtype.startswith("u") else -128
            kind = getattr(torch, dtype)
            values = torch.randint(low, low + 256, shape, device="cuda", generator=generator)
            tensors.append(values.to(kind))
        else:
            kind = getattr(torch, dtype)
            tensors.append(torch.randn(shape, device="cuda", generator=generator).to(kind))
    return tensors


def error_of(torch: Any, got: Any, expected: Any) -> float:
    """Largest absolute error, relative to the largest magnitude of ``expected``.

    The comparison works on slices, to bound the memory of the float64 copies.
    """
    got, expected = got.reshape(-1), expected.reshape(-1)
    if got.numel() != expected.numel():
        return float("inf")
    worst, largest = 0.0, 1e-30
    for one, two in zip(got.split(1 << 26), expected.split(1 << 26), strict=True):
        error = (one.double() - two.double()).abs().max()
        if not torch.isfinite(error):
            return float("inf")
        worst, largest = max(worst, float(error)), max(largest, float(two.double().abs().max()))
    return worst / largest


def time_graphs(
    torch: Any, runs: dict[str, Callable[[], Any]], stream: Any
) -> dict[str, list[float]]:
    """Time contenders by replaying CUDA graphs; return milliseconds per call for each round."""
    graphs: dict[str, tuple[Any, int]] = {}
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def seconds(launch: Callable[[], Any]) -> float:
        start.record(stream)
        launch()
        stop.record(stream)
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e-3

    with torch.cuda.stream(stream):
        for name, run in runs.items():
            run()
            once = min(seconds(run) for _ in range(2))
            count = max(1, min(_MAX_CALLS, round(_GRAPH_S / max(once, 1e-6))))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(count):
                    run()
            graphs[name] = graph, count
        times = time_interleaved(
            {name: lambda g=graph, n=count: seconds(g.replay) / n * 1e3  # type: ignore[misc]
             for name, (graph, count) in graphs.items()}
        )  # fmt: skip
    return times


def time_interleaved(timers: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Call the timers in interleaved rounds; return milliseconds per call for each round.

    The order is reversed in every other round, and the first round is a warm-up. Contenders that
    take several times as long as the fastest are timed separately: a slow kernel draws little
    power, so that the next contender would run on a cooler GPU at a higher clock.
    """
    first = {name: timer() for name, timer in timers.items()}
    limit = _SLOW_RATIO * min(first.values(), default=0.0)
    fast = [name for name in timers if first[name] <= limit]
    times: dict[str, list[float]] = {name: [] for name in timers}
    for number in range(_ROUNDS + 1):
        for name in fast if number % 2 else fast[::-1]:
            ms = timers[name]()
            if number:
                times[name].append(ms)
    for name in timers:
        if name not in fast:
            times[name] = [timers[name]() for _ in range(_SLOW_ROUNDS)]
    return times


def burst_timer(torch: Any, run: Callable[[], Any]) -> Callable[[], float]:
    """Return a timer: milliseconds per call, from a burst of launches and one synchronisation."""
    sync = torch.cuda.synchronize
    launch = getattr(run, "launch", run)
    for _ in range(3):
        launch()
    sync()
    start = time.perf_counter()
    launch()
    sync()
    count = max(2, round(_BURST_S / (time.perf_counter() - start)))

    def timed() -> float:
        start = time.perf_counter()
        for _ in range(count):
            launch()
        sync()
        return (time.perf_counter() - start) / count * 1e3

    return timed


def tensor_of(torch: Any, result: Any) -> Any:
    """Return the first output as a PyTorch tensor."""
    if isinstance(result, torch.Tensor):
        return result
    if not hasattr(result, "shape"):
        result = result[0]
    return torch.from_dlpack(result)


def start() -> None:
    """Import PyTorch and create the CUDA context, before :func:`measure` runs."""
    import torch

    import benchmarks.cuda_rows  # noqa: F401

    torch.zeros(1, device="cuda")


def build_default(row: str, arch: dict[str, Any], path: str) -> None:
    """Build the function of a row under dlight's default rules, as ``main`` of library ``path``."""
    import tvm

    from benchmarks.cuda_rows import row as row_of
    from benchmarks.prebuilt import export_kernel
    from tvmopt.device.cuda import CudaArch
    from tvmopt.kernels.cuda.default_kernels import default_kernels

    gpu = CudaArch(**arch)
    kernel = default_kernels(tvm.IRModule({"main": row_of(row).func}), gpu)["main"]
    export_kernel(kernel, gpu, path)


def allow_tf32(torch: Any, allowed: bool) -> None:
    """Set whether PyTorch's matmuls and convolutions may use TF32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def _call(torch: Any, row: Any, inputs: list[Any], allowed: bool) -> Any:
    allow_tf32(torch, allowed)
    return row.call(torch, inputs)


def measure(
    row: str, arguments: list[list[Any]], kernels: dict[str, tuple[str, str]]
) -> dict[str, Any]:
    """Check and time every contender of a row; return errors, median milliseconds and spread.

    Args:
        row: Name of the row.
        arguments: Shape and dtype of each argument.
        kernels: Library and kernel name, by contender.
    """
    import torch
    import tvm

    from benchmarks.cuda_rows import row as row_of

    allow_tf32(torch, False)
    torch.backends.cudnn.benchmark = True
    torch.cuda.empty_cache()
    of = row_of(row)
    inputs = inputs_of(torch, arguments)
    shape, dtype = arguments[-1]
    expected = of.reference(torch, inputs)
    device = tvm.runtime.cuda(0)
    stream = torch.cuda.Stream()
    ours = [tvm.runtime.from_dlpack(tensor) for tensor in inputs]
    result: dict[str, Any] = {"errors": {}, "ms": {}, "spread": {}, "problems": {}}
    runs: dict[str, Callable[[], Any]] = {}
    torch.cuda.synchronize()
    device.set_raw_stream(stream.cuda_stream)
    for name, (library, symbol) in kernels.items():
        out = torch.full(shape, 77, device="cuda", dtype=getattr(torch, dtype))
        if out.is_floating_point():
            out.fill_(float("nan"))
        target = tvm.runtime.from_dlpack(out)
        torch.cuda.synchronize()
        try:
            kernel = tvm.runtime.load_module(library)[symbol]
            kernel(*ours, target)
            torch.cuda.synchronize()
        except Exception as error:
            result["problems"][name] = last_line(error, 200)
            continue
        result["errors"][name] = error_of(torch, out, expected)
        runs[name] = functools.partial(kernel, *ours, target)
    try:
        allow_tf32(torch, of.allow_tf32)
        got = of.call(torch, inputs)
        if not row.startswith("gemv_i4"):  # PyTorch multiplies its own random weights there
            result["errors"]["torch"] = error_of(torch, got, expected)
        runs["torch"] = functools.partial(_call, torch, of, inputs, of.allow_tf32)
        if of.allow_tf32:
            runs["torch float32"] = functools.partial(_call, torch, of, inputs, False)
    except Exception as error:
        result["problems"]["torch"] = last_line(error, 200)
    del expected
    for name, times in time_graphs(torch, runs, stream).items():
        result["ms"][name] = statistics.median(times)
        result["spread"][name] = [min(times), max(times)]
    result["versions"] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip
    return result
