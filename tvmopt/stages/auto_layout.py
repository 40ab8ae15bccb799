"""Which layout the convolutions of a graph should have.

The whole graph is modelled in each layout, layout changes at its edges included. Where the model
tells little difference, the compiled networks are timed side by side.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from tvmopt import host
from tvmopt.arch.target import TargetSpec, set_thread_environment
from tvmopt.build import build_library
from tvmopt.evaluate.latency import interleave
from tvmopt.measure.jobs import random_array
from tvmopt.policy.graph_cost import modelled_cycles
from tvmopt.transform.lower import lower

# Channels innermost first: where the model finds no difference, kernels have been found better.
_LAYOUTS = ("NHWC", "NCHW")
_CONVOLUTIONS = ("relax.nn.conv2d", "relax.nn.conv2d_transpose")
# A layout modelled to cost no more than this many times the cheapest is worth timing.
_CLOSE = 1.3
_REPEATS, _SECONDS = 60, 2.0


def choose_layout(convert: Callable[[str], tvm.IRModule], target: TargetSpec) -> str:
    """The best layout for the whole graph.

    Args:
        convert: Gives the module in a layout.
        target: Target that it is compiled for; timed only where it runs on this machine.
    """
    plain = convert("NCHW")
    if not _has_convolutions(plain):
        return "NCHW"
    llvm, arch = target.to_tvm(), target.arch()
    lowered = {
        layout: lower(plain if layout == "NCHW" else convert(layout), llvm) for layout in _LAYOUTS
    }
    cost = {layout: modelled_cycles(module, arch) for layout, module in lowered.items()}
    close = [layout for layout in _LAYOUTS if cost[layout] <= _CLOSE * min(cost.values())]
    if len(close) > 1 and not target.missing_on_host():
        cost = measured_seconds({layout: lowered[layout] for layout in close}, target)
    return min(close, key=lambda layout: cost[layout])


def measured_seconds(
    lowered: Mapping[str, tvm.IRModule], target: TargetSpec, database_dir: Path | None = None
) -> dict[str, float]:
    """Median latency of each lowered module, timed in turns.

    Args:
        lowered: Modules by name.
        target: Target that they are compiled for.
        database_dir: Tuning database that schedules them; the default schedules without.
    """
    set_thread_environment(target.threads)
    host.request_amx(target.cpu_flags)
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        calls = {}
        for number, (name, module) in enumerate(lowered.items()):
            path = Path(folder) / f"{number}.so"
            built = build_library(module, target, path, database_dir=database_dir)
            calls[name] = _call(built.path, module)
        samples = interleave(calls, _REPEATS, _SECONDS)
    return {name: statistics.median(values) for name, values in samples.items()}


def _call(library: Path, lowered: tvm.IRModule) -> Callable[[], object]:
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    rng = np.random.default_rng(0)
    arrays = [
        random_array(rng, tuple(int(e) for e in param.ty.shape), str(param.ty.dtype), False)
        for param in lowered["main"].params
    ]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    return lambda: machine["main"](*tensors)


def _has_convolutions(mod: tvm.IRModule) -> bool:
    found: list[relax.Call] = []

    def look(expr: relax.Expr) -> None:
        op = expr.op if isinstance(expr, relax.Call) else None
        if isinstance(op, tvm.ir.Op) and op.name in _CONVOLUTIONS:
            found.append(expr)

    relax.analysis.post_order_visit(mod["main"], look)
    return bool(found)
