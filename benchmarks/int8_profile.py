"""Profile a model in int8 or bfloat16 on the CPU, kernel by kernel.

Usage: ``python -m benchmarks.int8_profile [--only NAME | --model FILE.onnx --input_shapes S]
[--dtype int8|bfloat16] [--threads N] [--json FILE]``

The script prints a table with the median time of every kernel in the network, its tensor
instruction and how often the disassembly holds it, and the share of the epilogue (bias, activation,
requantisation). The share comes from a second build of the kernel that stores the accumulator
without the epilogue. The last lines summarise the shares.
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
from benchmarks.cpu_int8 import read_model
from benchmarks.cpu_models import model_files
from benchmarks.interleave import interleave
from benchmarks.low_precision import lowered

_CALLS, _WARM = 30, 5
_ANCHORS = ("conv2d", "matmul")
_MODELS = ("resnet50",)


@dataclasses.dataclass(frozen=True)
class KernelProfile:
    """Profile of one fused function of the network.

    Attributes:
        name: Name of the function.
        calls: Calls in one run of the network.
        us: Microseconds of all calls of one run, median over runs.
        instructions: Tensor instructions that the kernel uses.
        counted: Occurrences of these instructions in the disassembly.
        epilogue: Share of the epilogue in the kernel's time; 0 for a kernel without tensor
            instructions.
    """

    name: str
    calls: int
    us: float
    instructions: tuple[str, ...] = ()
    counted: int = 0
    epilogue: float = 0.0

    @property
    def kind(self) -> str:
        """``tensorized`` or ``vector`` for matmul and convolution, ``memory`` for the rest."""
        if self.instructions:
            return "tensorized"
        return "vector" if any(a in self.name for a in _ANCHORS) else "memory"


def profile(mod: Any, target: Any, inputs: Sequence[np.ndarray]) -> list[KernelProfile]:
    """Profile the kernels of a lowered module; return them by time, longest first."""
    import tvm
    from tvm import relax

    from tvmopt.build import build_library
    from tvmopt.kernels.cpu.intrinsics import instructions_used
    from tvmopt.kernels.module_schedules import schedule_module

    with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
        path = Path(scratch) / "library.so"
        build_library(mod, target, path, native=False)  # the virtual machine times kernels
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
        counted, epilogue = _inspect(source, used, target) if used else (0, 0.0)
        kernels.append(KernelProfile(name, len(runs[0][name]), us, used, counted, epilogue))
    return sorted(kernels, key=lambda k: -k.us)


def _timed_calls(machine: Any, tensors: list[Any]) -> list[dict[str, list[float]]]:
    """Time each kernel call with the VM's instrument; return microseconds by kernel, per run."""
    run: dict[str, list[float]] = {}
    began = 0.0

    def instrument(_: object, name: str, before: bool, *__: object) -> int:
        nonlocal began
        if before:
            began = time.perf_counter()
        elif not name.startswith("vm."):
            run.setdefault(name, []).append((time.perf_counter() - began) * 1e6)
        return 0  # run the call

    machine.set_instrument(instrument)
    runs = []
    for _ in range(_WARM + _CALLS):
        run = {}
        machine["main"](*tensors)
        runs.append(run)
    return runs[_WARM:]


def _inspect(func: Any, used: Sequence[str], target: Any) -> tuple[int, float]:
    """Count instructions in the disassembly of one kernel, and time its epilogue's share."""
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
    """Return ``func`` without its epilogue: the accumulator is cast to the output dtype.

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
        if not own or _is_vector_call(store.value):
            return store  # no epilogue: a plain initialisation, or a store of an intrinsic's result
        return tirx.BufferStore(store.buffer, _narrow(own[0], store.value), list(store.indices))

    body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, on_store), order="post")
    return func.with_body(body)


def _is_vector_call(value: Any) -> bool:
    """Whether a value is the result of a vector intrinsic; the epilogue is then elsewhere."""
    from tvm import ir

    return isinstance(value, ir.Call) and isinstance(value.args[0], ir.Call)


def _narrow(accumulator: Any, value: Any) -> Any:
    """Cast the accumulator to the dtype of ``value`` with the cheapest instruction."""
    from tvm import tirx

    dtype = str(value.ty.dtype)
    if dtype.startswith("bfloat16"):
        upper = tirx.reinterpret("uint32", accumulator) >> tirx.const(16, "uint32")
        return tirx.reinterpret(dtype, upper.astype("uint16"))
    return accumulator.astype(dtype)


def table(kernels: Sequence[KernelProfile]) -> str:
    """Return a Markdown table, one line per kernel."""
    total = sum(k.us for k in kernels)
    header = ("kernel", "calls", "us", "%", "kind", "instructions", "in asm", "epilogue %")
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


def summary(kernels: Sequence[KernelProfile]) -> dict[str, float]:
    """Shares of the total time by kind of kernel, with the epilogues as a kind of their own."""
    total = sum(k.us for k in kernels)
    shares: dict[str, float] = collections.defaultdict(float)
    for k in kernels:
        shares[k.kind] += k.us * (1 - k.epilogue) / total
        shares["epilogue"] += k.us * k.epilogue / total
    return dict(shares)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser: argparse.ArgumentParser = options.make_parser(
        "int8_profile", __doc__, 15.0, "not used here"
    )
    parser.add_argument("--dtype", default="int8", choices=("int8", "bfloat16", "float32"))
    args = options.parse(parser, arguments)
    with options.errors_in_one_line(parser):
        todo = model_files(parser, args, _MODELS)
    from tvmopt.device.target import resolve_target

    facts = report.environment(args.threads)
    report.print_environment(facts, ())
    shown = {}
    for file in todo:
        target = resolve_target("host", args.threads)
        model = read_model(file, args.threads)
        kernels = profile(lowered(model, args.dtype, target), target, model.arrays)
        print(f"\n## {file.name} {args.dtype}\n\n{table(kernels)}\n")
        anchors = [k for k in kernels if k.kind != "memory"]
        tensorized = sum(k.kind == "tensorized" for k in anchors)
        print(
            f"{tensorized} of {len(anchors)} matmuls and convolutions use a tensor instruction; "
            "share of the time:"
        )
        for name, share in summary(kernels).items():
            print(f"- {name}: {100 * share:.1f} %")
        shown[file.name] = [dataclasses.asdict(k) for k in kernels]
    report.write_json(args.json, {"environment": facts, "kernels": shown})
    return 0


if __name__ == "__main__":
    sys.exit(main())
