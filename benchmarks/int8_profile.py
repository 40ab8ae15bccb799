"""Where the time of one model in int8 or bfloat16 goes, kernel by kernel.

``python -m benchmarks.int8_profile [--only NAME | --model FILE.onnx --input_shapes S] [--dtype
int8|bfloat16] [--threads N] [--json FILE]`` prints a table: the time of every kernel in the network
(medians over runs), the tensor instruction that it multiplies with, counted in the
disassembly, and how much of its time its epilogue takes (bias, activation, requantise), which is
measured with a kernel that stores the sums as they are. The last lines sum this up.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import options, report
from benchmarks.cpu_int8 import read_job
from benchmarks.cpu_models import jobs
from benchmarks.interleave import interleave
from benchmarks.low_precision import lowered

_CALLS, _WARM = 30, 5
_ANCHORS = ("conv2d", "matmul")
_MODELS = ("resnet50",)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One fused function of the network.

    Attributes:
        name: Its name.
        calls: How often the network calls it.
        us: Microseconds of all these calls, median.
        instructions: Tensor instructions that it uses.
        counted: How often they stand in its disassembly.
        epilogue: Share of its time that its epilogue takes; 0 where it is not tensorised.
    """

    name: str
    calls: int
    us: float
    instructions: tuple[str, ...] = ()
    counted: int = 0
    epilogue: float = 0.0

    @property
    def kind(self) -> str:
        """``product`` with a tensor instruction, ``plain product``, or ``movement``."""
        if self.instructions:
            return "product"
        return "plain product" if any(a in self.name for a in _ANCHORS) else "movement"


def profile(mod: Any, target: Any, inputs: Sequence[np.ndarray]) -> list[Kernel]:
    """Kernels of a lowered module, those that take longest first."""
    import tvm
    from tvm import relax

    from tvmopt.build import build_library
    from tvmopt.kernels.cpu.intrinsics import instructions_used
    from tvmopt.kernels.first_choice import schedule_module

    with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
        path = Path(scratch) / "library.so"
        build_library(mod, target, path)
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
        tensors = [tvm.runtime.tensor(array) for array in inputs]
        runs = _timed_calls(machine, tensors)
    scheduled, _ = schedule_module(mod, target.arch())
    functions = {var.name_hint: func for var, func in scheduled.functions_items()}
    kernels = []
    for name in runs[0]:
        us = float(np.median([sum(run[name]) for run in runs]))
        source = functions.get(name.removesuffix("_prepacked"))
        used = instructions_used(source) if isinstance(source, tvm.tirx.PrimFunc) else ()
        counted, epilogue = _looked_into(source, used, target) if used else (0, 0.0)
        kernels.append(Kernel(name, len(runs[0][name]), us, used, counted, epilogue))
    return sorted(kernels, key=lambda k: -k.us)


def _timed_calls(machine: Any, tensors: list[Any]) -> list[dict[str, list[float]]]:
    """Microseconds of each call of each kernel, for every run of the network."""
    run: dict[str, list[float]] = {}
    began = 0.0

    def instrument(_: object, name: str, before: bool, *__: object) -> int:
        nonlocal began
        if before:
            began = time.perf_counter()
        elif not name.startswith("vm."):
            run.setdefault(name, []).append((time.perf_counter() - began) * 1e6)
        return 0  # go on as usual

    machine.set_instrument(instrument)
    runs = []
    for _ in range(_WARM + _CALLS):
        run = {}
        machine["main"](*tensors)
        runs.append(run)
    return runs[_WARM:]


def _looked_into(func: Any, used: Sequence[str], target: Any) -> tuple[int, float]:
    """Instructions in the disassembly, and the share of the epilogue, of one kernel."""
    import tvm

    from tvmopt.measure.check import random_array
    from tvmopt.measure.split import split_packing

    compute = split_packing(func).compute
    built = {}
    for name, one in (("whole", compute), ("bare", without_epilogue(compute))):
        module = tvm.IRModule({"main": one.with_attr("global_symbol", "main")})
        built[name] = tvm.tirx.build(module, target=target.to_tvm(), pipeline="s_tir")
    assembly = built["whole"].inspect_source("asm")
    counted = sum(len(re.findall(rf"\b{name}\b", assembly)) for name in used)
    random = np.random.default_rng(0)
    arrays = [
        tvm.runtime.tensor(
            random_array(random, tuple(int(e) for e in p.shape), str(p.dtype), positive=True)
        )
        for p in compute.params
    ]
    calls: dict[str, Callable[[], object]] = {
        name: functools.partial(module["main"], *arrays) for name, module in built.items()
    }
    timings = interleave(calls, time_limit_s=2.0, rounds=8)
    return counted, max(0.0, 1 - timings["bare"].median / timings["whole"].median)


def without_epilogue(func: Any) -> Any:
    """``func`` with its sums stored as they are, cut to the type of the result.

    Before -> after::

        Y[m, n] = requantise(S[m, n] + bias[n]) + X[m, n]
        Y[m, n] = Cast("uint8", S[m, n])
    """
    import tvm_ffi
    from tvm import ir, tirx

    params = list(func.params)

    def on_store(store: Any) -> Any:
        final = store.buffer.same_as(params[-1])
        wide = "local" in str(store.buffer.scope()) and not final
        if not (final or wide):
            return store
        loads: list[Any] = []
        tvm_ffi.structural_walk(store.value, (ir.TensorLoad, loads.append), order="post")
        own = [
            x
            for x in loads
            if "local" in str(x.source.scope())
            and not any(x.source.same_as(p) for p in (*params, store.buffer))
        ]
        if not own or _is_moved(store.value):
            return store  # no epilogue: it begins with nothing, or only stores what is computed
        return tirx.BufferStore(store.buffer, _cut(own[0], store.value), list(store.indices))

    body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, on_store), order="post")
    return func.with_body(body)


def _is_moved(value: Any) -> bool:
    """Whether a value is what a function of vectors gives: the epilogue is elsewhere."""
    from tvm import ir

    return isinstance(value, ir.Call) and isinstance(value.args[0], ir.Call)


def _cut(sums: Any, value: Any) -> Any:
    """Sums in the type of ``value``, by the cheapest instruction that there is."""
    from tvm import tirx

    dtype = str(value.ty.dtype)
    if dtype.startswith("bfloat16"):
        upper = tirx.reinterpret("uint32", sums) >> tirx.const(16, "uint32")
        return tirx.reinterpret(dtype, upper.astype("uint16"))
    return sums.astype(dtype)


def table(kernels: Sequence[Kernel]) -> str:
    """Markdown table of the kernels."""
    total = sum(k.us for k in kernels)
    header = ("kernel", "calls", "us", "%", "kind", "instruction", "in asm", "epilogue %")
    return report.markdown(
        header,
        (
            [
                k.name[:60],
                str(k.calls),
                f"{k.us:.1f}",
                f"{100 * k.us / total:.1f}",
                k.kind,
                " ".join(k.instructions),
                str(k.counted or ""),
                f"{100 * k.epilogue:.0f}" if k.instructions else "",
            ]
            for k in kernels
        ),
    )


def summary(kernels: Sequence[Kernel]) -> dict[str, float]:
    """Shares of the whole time: products, epilogues, plain products, movement."""
    total = sum(k.us for k in kernels)
    shares: dict[str, float] = collections.defaultdict(float)
    for k in kernels:
        shares[k.kind] += k.us * (1 - k.epilogue) / total
        shares["epilogue"] += k.us * k.epilogue / total
    return dict(shares)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser: argparse.ArgumentParser = options.make_parser(
        "int8_profile", __doc__, 15.0, "not used here"
    )
    parser.add_argument("--dtype", default="int8", choices=("int8", "bfloat16"))
    args = options.parse(parser, arguments)
    with options.errors_in_one_line(parser):
        todo = jobs(parser, args, _MODELS)
    from tvmopt.device.target import resolve_target

    facts = report.environment(args.threads)
    report.print_environment(facts, ())
    shown = {}
    for job in todo:
        target = resolve_target("host", args.threads)
        model = read_job(job, args.threads)
        kernels = profile(lowered(model, args.dtype, target), target, model.arrays)
        print(f"\n## {job.name} {args.dtype}\n\n{table(kernels)}\n")
        anchors = [k for k in kernels if k.kind != "movement"]
        tensorised = sum(k.kind == "product" for k in anchors)
        print(f"{tensorised} of {len(anchors)} products use a tensor instruction; of the time:")
        for name, share in summary(kernels).items():
            print(f"- {name}: {100 * share:.1f} %")
        shown[job.name] = [dataclasses.asdict(k) for k in kernels]
    report.write_json(args.json, {"environment": facts, "kernels": shown})
    return 0


if __name__ == "__main__":
    sys.exit(main())
