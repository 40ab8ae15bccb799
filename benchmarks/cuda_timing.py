"""What the workers of ``cuda_ops`` do: build TVM's default, check and time all contenders of a row.

A kernel that faults ends its worker and nothing else.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from tvmopt.errors import last_line

# How long a recorded burst lasts at most, and the calls in one.
_BURST_S, _MOST_CALLS = 5e-3, 50
_ROUNDS = 15
# Times the fastest's time from which on a contender is timed apart, and how often.
_SLOW, _SLOW_ROUNDS = 3.0, 5


def inputs_of(torch: Any, arguments: list[list[Any]], seed: int = 0) -> list[Any]:
    """Random tensors on the GPU for every argument but the last, which is written."""
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


def error_of(torch: Any, got: Any, wanted: Any) -> float:
    """Largest difference relative to the largest wanted value, a slice at a time."""
    got, wanted = got.reshape(-1), wanted.reshape(-1)
    if got.numel() != wanted.numel():
        return float("inf")
    worst, largest = 0.0, 1e-30
    for one, two in zip(got.split(1 << 26), wanted.split(1 << 26), strict=True):
        apart = (one.double() - two.double()).abs().max()
        if not torch.isfinite(apart):
            return float("inf")
        worst, largest = max(worst, float(apart)), max(largest, float(two.double().abs().max()))
    return worst / largest


def time_in_turns(
    torch: Any, runs: dict[str, Callable[[], Any]], stream: Any
) -> dict[str, list[float]]:
    """Milliseconds of one call, by contender, a value a round; each round is one CUDA graph."""
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
            count = max(1, min(_MOST_CALLS, round(_BURST_S / max(once, 1e-6))))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(count):
                    run()
            graphs[name] = graph, count
        times = in_turns(
            {name: lambda g=graph, n=count: seconds(g.replay) / n * 1e3  # type: ignore[misc]
             for name, (graph, count) in graphs.items()}
        )  # fmt: skip
    return times


def in_turns(timers: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Milliseconds of a call of each contender, a value a round, the first not counted.

    What takes several times as long as the fastest is timed apart: a slow kernel draws little
    power, so that whoever came after it would find the GPU cool and at a higher clock. The others
    take turns, every other round in reverse.
    """
    first = {name: timer() for name, timer in timers.items()}
    limit = _SLOW * min(first.values(), default=0.0)
    leaders = [name for name in timers if first[name] <= limit]
    times: dict[str, list[float]] = {name: [] for name in timers}
    for turn in range(_ROUNDS + 1):
        for name in leaders if turn % 2 else leaders[::-1]:
            spent = timers[name]()
            if turn:
                times[name].append(spent)
    for name in timers:
        if name not in leaders:
            times[name] = [timers[name]() for _ in range(_SLOW_ROUNDS)]
    return times


def start() -> None:
    """Load what :func:`measure` needs."""
    import torch

    import benchmarks.cuda_rows  # noqa: F401

    torch.zeros(1, device="cuda")


def build_default(row: str, arch: dict[str, Any], path: str) -> None:
    """Build a row's function under dlight's default rules, as ``main`` of the library ``path``."""
    import tvm

    from benchmarks.cuda_rows import row as row_of
    from tvmopt.device.cuda import CudaArch
    from tvmopt.kernels.cuda.build import build_kernels
    from tvmopt.kernels.cuda.default_kernels import default_kernels
    from tvmopt.kernels.cuda.toolchain.modules import embed_cubins
    from tvmopt.link import link_options

    gpu = CudaArch(**arch)
    kernel = default_kernels(tvm.IRModule({"main": row_of(row).func}), gpu)["main"]
    with embed_cubins(gpu):
        build_kernels({"main": kernel}, gpu).export_library(path, **link_options())


def measure(
    row: str, arguments: list[list[Any]], kernels: dict[str, tuple[str, str]]
) -> dict[str, Any]:
    """Errors and median milliseconds of every contender of a row.

    Args:
        row: Its name.
        arguments: Shape and type of each argument.
        kernels: By contender, a library and the name of the kernel in it.
    """
    import torch
    import tvm

    from benchmarks.cuda_rows import row as row_of

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.cuda.empty_cache()
    of = row_of(row)
    inputs = inputs_of(torch, arguments)
    shape, dtype = arguments[-1]
    wanted = of.reference(torch, inputs)
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
        result["errors"][name] = error_of(torch, out, wanted)
        runs[name] = functools.partial(kernel, *ours, target)
    try:
        got = of.call(torch, inputs)
        if not row.startswith("gemv_i4"):  # which multiplies numbers of its own
            result["errors"]["torch"] = error_of(torch, got, wanted)
        runs["torch"] = lambda: of.call(torch, inputs)
    except Exception as error:
        result["problems"]["torch"] = last_line(error, 200)
    del wanted
    for name, times in time_in_turns(torch, runs, stream).items():
        result["ms"][name] = statistics.median(times)
        result["spread"][name] = [min(times), max(times)]
    result["versions"] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip
    return result
