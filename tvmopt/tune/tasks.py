"""Tasks: the distinct tunable functions of a lowered module.

Structurally equal functions form one task, whose weight is the number of calls. Thus a block that a
network repeats twelve times is tuned once. Tasks may also be keyed by anchor operator; then
functions that differ only in their epilogue form one task, too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import tvm_ffi
from tvm.ir import IRModule
from tvm.target import Target

from tvmopt.device import dtypes
from tvmopt.kernels.scheduled import SCHEDULED_ATTR
from tvmopt.measure.measurer import weight_bytes
from tvmopt.tune.database import workload_hash
from tvmopt.tune.operator import anchor_block, operator_function, why_no_operator


@dataclasses.dataclass(frozen=True)
class Argument:
    """One argument of a task.

    Attributes:
        name: Name of the buffer.
        shape: Shape; None when an extent is symbolic or the argument is not a tensor.
        dtype: TVM dtype.
        written: Whether the function writes the argument.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    written: bool


@dataclasses.dataclass(frozen=True)
class Task:
    """One function to tune.

    Attributes:
        name: Name of one of the task's functions.
        mod: Module with that function alone, as ``main``; the workload of the tuning database.
        weight: Number of calls in the network.
        flops: FLOPs of one call, as TVM estimates them.
        shape: Shapes and dtypes of the arguments, as text.
        arguments: The arguments, in calling order.
        granularity: ``"subgraph"``: a fused function; ``"operator"``: an anchor operator.
        left_out: Reason why the task is not tuned; empty when it is.
        effort: Fraction of the candidate budget that ``fast`` uses for this task.
    """

    name: str
    mod: IRModule
    weight: int
    flops: float
    shape: str
    arguments: tuple[Argument, ...]
    granularity: str = "subgraph"
    left_out: str = ""
    effort: float = 1.0

    @property
    def is_static(self) -> bool:
        """Whether every extent is static; only static tasks can be measured."""
        return all(argument.shape is not None for argument in self.arguments)

    @property
    def is_measurable(self) -> bool:
        """Whether the task is static and not left out."""
        return self.is_static and not self.left_out

    @functools.cached_property
    def workload(self) -> str:
        """Workload hash of the module; the key in databases."""
        return workload_hash(self.mod)

    @property
    def bytes(self) -> int:
        """Total size of the arguments in bytes; 0 when an extent is symbolic."""
        if not self.is_static:
            return 0
        return sum(math.prod(a.shape or ()) * _item_bytes(a.dtype) for a in self.arguments)


def extract_tasks(mod: IRModule, target: Target, granularity: str = "subgraph") -> tuple[Task, ...]:
    """Return the tasks of a lowered module.

    The order depends only on the module: most FLOPs first, then by name. Functions that are
    scheduled already are no tasks.

    Args:
        mod: Lowered Relax module: Relax functions that call TensorIR functions.
        target: Target to tune for.
        granularity: ``"subgraph"``: each fused function; ``"operator"``: the anchor operator of
            each. Functions without an anchor are then listed with ``left_out``.
    """
    from tvm.s_tir import meta_schedule as ms

    found = [
        task_of(str(extracted.task_name), extracted.dispatched[0], int(extracted.weight))
        for extracted in ms.relax_integration.extract_tasks(
            mod, target, module_equality="structural"
        )
        if not extracted.dispatched[0]["main"].attrs.get(SCHEDULED_ATTR, False)
    ]
    if granularity == "operator":
        found = _by_operator(found)
    found.sort(key=lambda task: (-task.weight * task.flops, task.name))
    return tuple(found)


def task_of(name: str, mod: IRModule, weight: int) -> Task:
    """Return the task of a module with one TensorIR function, ``main``."""
    from tvm.s_tir.analysis import estimate_tir_flops

    arguments = function_arguments(mod["main"])
    return Task(
        name=name,
        mod=mod,
        weight=weight,
        flops=float(estimate_tir_flops(mod)) if _is_static(arguments) else 0.0,
        shape=shape_text(arguments),
        arguments=arguments,
    )


def _by_operator(tasks: Iterable[Task]) -> list[Task]:
    """Return the distinct operators of ``tasks``, then the tasks without one as left out."""
    operators: dict[Any, Task] = {}
    others: list[Task] = []
    for task in sorted(tasks, key=lambda task: (-task.weight * task.flops, task.name)):
        operator = operator_function(task.mod["main"])
        if operator is None:
            why = why_no_operator(task.mod["main"])
            others.append(dataclasses.replace(task, left_out=why))
            continue
        mod = IRModule({"main": operator})
        key = tvm_ffi.structural_hash(mod)
        if key not in operators:
            name = f"{anchor_block(operator)} of {task.name}"
            operators[key] = task_of(name, mod, 0)
        weight = operators[key].weight + task.weight
        operators[key] = dataclasses.replace(operators[key], weight=weight, granularity="operator")
    return [*operators.values(), *others]


def network_bytes(tasks: Iterable[Task]) -> int:
    """Return the bytes of weights that one inference reads, summed over all calls."""
    return sum(task.weight * weight_bytes(task.mod["main"]) for task in tasks if task.is_static)


def function_arguments(func: Any) -> tuple[Argument, ...]:
    """Return descriptions of the arguments of a TensorIR function ``func``."""
    import tvm_ffi
    from tvm.tirx.stmt import BufferStore

    stores: list[Any] = []
    tvm_ffi.structural_walk(func.body, (BufferStore, lambda store: stores.append(store.buffer)))
    return tuple(
        Argument(
            name=str(param.name),
            shape=_static_shape(param),
            dtype=str(param.dtype if hasattr(param, "dtype") else param.ty.dtype),
            written=any(param.same_as(buffer) for buffer in stores),
        )
        for param in func.params
    )


def shape_text(arguments: tuple[Argument, ...]) -> str:
    """Format shapes: ``x:1x64x56x56 f32, w:64x64x3x3 f32 -> 1x64x56x56 f32``; symbolic is ``?``."""
    inputs = [f"{a.name}:{_extents(a)}" for a in arguments if not a.written]
    outputs = [_extents(a) for a in arguments if a.written]
    return f"{', '.join(inputs)} -> {', '.join(outputs)}"


def _extents(argument: Argument) -> str:
    if argument.shape is None:
        extents = "?"
    else:
        extents = "x".join(str(extent) for extent in argument.shape) or "scalar"
    return f"{extents} {dtypes.dtype(argument.dtype).short or argument.dtype}"


def _static_shape(param: Any) -> tuple[int, ...] | None:
    try:
        return tuple(int(extent) for extent in param.shape)
    except (AttributeError, TypeError, ValueError):  # a scalar, or a symbolic extent
        return None


def _is_static(arguments: tuple[Argument, ...]) -> bool:
    return all(argument.shape is not None for argument in arguments)


def _item_bytes(dtype: str) -> int:
    digits = "".join(c for c in dtype.split("_")[0] if c.isdigit())
    return max(1, int(digits) // 8) if digits else 1
