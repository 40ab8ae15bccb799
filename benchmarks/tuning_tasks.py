"""Tuning tasks for benchmarks: a kernel as tvmopt lowers it, and as TVM does (no Winograd)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import low_precision
from benchmarks.operators import Operator, relax_module
from benchmarks.single_calls import SingleCall, single_calls


@dataclasses.dataclass(frozen=True)
class TuningTask:
    """One kernel to tune.

    Attributes:
        name: Name in tables.
        kind: Group of tasks with one mean.
        ours: The kernel as tvmopt lowers it.
        plain: The same computation as TVM lowers it.
        network_bytes: Bytes of all weights of the kernel's network.
    """

    name: str
    kind: str
    ours: SingleCall
    plain: SingleCall
    network_bytes: int = 0


def operator_task(kind: str, operator: Operator, target: Any, dtype: str = "float32") -> TuningTask:
    """Return the task of an operator's kernel with most FLOPs, in float32 or bfloat16.

    Raises:
        ValueError: When no kernel has static shapes.
    """
    from tvmopt.measure.measurer import weight_bytes
    from tvmopt.transform.conversion import convert_module

    module = convert_module(relax_module(operator.problem()), dtype=dtype).mod
    found = _pairs(module, target)
    if not found:
        raise ValueError(f"{operator.name} must lower to a kernel of static shape, but has none")
    ours, plain = max(found, key=lambda pair: _flops(pair[1].func))
    return TuningTask(operator.name, kind, ours, plain, weight_bytes(ours.func))


def model_tasks(
    path: Path, shapes: str, target: Any, most: int, dtype: str = "float32"
) -> list[TuningTask]:
    """Return the distinct kernels of a model with most FLOPs; the kind is the template.

    Args:
        path: The ONNX file.
        shapes: Input shapes, as text.
        target: A :class:`tvmopt.device.target.TargetSpec`.
        most: Kernels to keep.
        dtype: Dtype; int8 is calibrated on random inputs.

    Raises:
        ModelError: When the model cannot be read.
    """
    from tvm import IRModule

    from tvmopt.measure.measurer import weight_bytes
    from tvmopt.tune.database import workload_hash

    module = _converted(path, shapes, target, dtype)
    calls: dict[str, list[tuple[SingleCall, SingleCall]]] = {}
    for pair in _pairs(module, target):
        calls.setdefault(workload_hash(IRModule({"main": pair[0].func})), []).append(pair)
    network_bytes = sum(len(same) * weight_bytes(same[0][0].func) for same in calls.values())
    heavy = sorted(calls.values(), key=lambda same: -len(same) * _flops(same[0][1].func))
    return [
        TuningTask(ours.name, kind, ours, plain, network_bytes)
        for (ours, plain), *_ in heavy
        if (kind := _template(ours.func, target)) is not None
    ][:most]


def _converted(path: Path, shapes: str, target: Any, dtype: str) -> Any:
    from benchmarks.model_module import converted_module
    from tvmopt.frontend import load_onnx, parse_input_shapes, prepare

    if dtype != "float32":
        return low_precision.converted(low_precision.read(path, shapes, target.threads), dtype)
    prepared = prepare(load_onnx(path), parse_input_shapes(shapes))
    return converted_module(prepared.model, target)[0]


def _pairs(module: Any, target: Any) -> list[tuple[SingleCall, SingleCall]]:
    """Pair the kernel calls of both lowerings; both fuse alike, so the order is equal."""
    from tvmopt.transform.lower import lower

    llvm = target.to_tvm()
    ours = single_calls(lower(module, llvm))
    plain = single_calls(lower(module, llvm, winograd=False))
    if [c and c.inputs for c in ours] != [c and c.inputs for c in plain]:
        raise ValueError(
            f"both lowerings must call kernels with the same inputs, but got {len(ours)} and "
            f"{len(plain)} calls; give single operators instead of this model"
        )
    return [(a, b) for a, b in zip(ours, plain, strict=True) if a is not None and b is not None]


def _flops(func: Any) -> float:
    from tvm import IRModule
    from tvm.s_tir.analysis import estimate_tir_flops

    return float(estimate_tir_flops(IRModule({"main": func})))


def _template(func: Any, target: Any) -> str | None:
    """Return the template of the top-1 configuration; None for an empty search space."""
    from tvmopt.kernels.policies import DefaultPolicy

    ranked: Sequence[Any] = DefaultPolicy(func, target.arch()).ranked
    return str(ranked[0].hint.template) if ranked else None


def tuned(
    strategy: str,
    module: Any,
    target: Any,
    work_dir: Path,
    *,
    topk: int = 1,
    trials: int = 0,
    time_budget_s: float = 0.0,
) -> Any:
    """Tune a lowered module with a strategy; return a ``TuneResult`` with a database."""
    from tvmopt.tune import TuneOptions, create_strategy, extract_tasks

    tune_options = TuneOptions(trials, time_budget_s, target.threads, topk)
    llvm = target.to_tvm()
    return create_strategy(strategy).tune(
        extract_tasks(module, llvm), llvm, target.arch(), tune_options, work_dir, lambda *_: None
    )
