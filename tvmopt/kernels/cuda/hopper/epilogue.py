"""What is stored in place of a sum: an expression of it, of where it stands, and of inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """An elementwise function of the sum at one place of the output.

    Attributes:
        acc: Stands for the sum.
        axes: Stand for the output's indices, the last one for the column.
        expr: What is stored, of the output's type.
        inputs: The buffers that ``expr`` reads besides, in the order of the kernel's parameters.
    """

    acc: tirx.Var
    axes: tuple[tirx.Var, ...]
    expr: Any
    inputs: tuple[Any, ...] = ()

    def at(
        self,
        value: Any,
        indices: Sequence[Any],
        buffers: Sequence[tuple[Any, Any]] = (),
        runs: Sequence[tuple[tirx.Var, Any]] = (),
    ) -> Any:
        """The expression for one element.

        Args:
            value: Its sum.
            indices: Its place in the output.
            buffers: Pairs: one of ``inputs``, and what to read in its place.
            runs: Pairs: a variable of :func:`split_runs`, and what was read.
        """
        values: dict[Any, Any] = {self.acc: value, **dict(runs)}
        for axis, index in zip(self.axes, indices, strict=bool(indices)):
            dtype = str(axis.ty.dtype)
            values[axis] = index if str(index.ty.dtype) == dtype else tirx.Cast(dtype, index)
        return substitute(self.expr, values, buffers)

    @property
    def has_place(self) -> bool:
        """Whether the expression depends on where the element is."""
        used: set[Any] = set()
        tvm_ffi.structural_walk(self.expr, (tirx.Var, used.add), order="post")
        return bool(self.inputs) or any(axis in used for axis in self.axes)

    @property
    def work(self) -> float:
        """Instructions for one element, about."""
        total = 0.0

        def count(node: Any) -> None:
            nonlocal total
            if isinstance(node, ir.TensorLoad):
                total += 10.0
            elif isinstance(node, ir.Call):
                total += 20.0
            elif isinstance(node, (tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod)):
                total += 10.0
            elif not isinstance(node, (tirx.Var, tirx.IntImm, tirx.FloatImm)):
                total += 1.0

        tvm_ffi.structural_walk(self.expr, (ir.Expr, count), order="post")
        return total

    @property
    def reads(self) -> tuple[tuple[Any, tuple[bool, ...]], ...]:
        """Every load: the buffer, and which of the output's axes its place depends on."""
        found: list[Any] = []
        tvm_ffi.structural_walk(self.expr, (ir.TensorLoad, found.append), order="post")
        result = []
        for load in found:
            used: set[Any] = set()
            for index in load.indices:
                tvm_ffi.structural_walk(index, (tirx.Var, used.add), order="post")
            result.append((load.source, tuple(axis in used for axis in self.axes)))
        return tuple(result)


def split_runs(ending: Epilogue, count: int) -> tuple[Epilogue, tuple[tuple[tirx.Var, Any], ...]]:
    """Take out the loads that neighbouring columns make of neighbouring elements.

    before -> after, for ``count`` columns at once: ``acc + r[i, j]`` -> ``acc + run`` and the pair
    of ``run`` and ``r[i, j]``, which can be read for ``count`` columns by one instruction.

    Args:
        ending: The epilogue.
        count: Columns; the first is a multiple of it.

    Returns:
        The epilogue whose loads of that kind are variables, and these variables with their loads.
    """
    column = ending.axes[-1]
    found: list[tuple[tirx.Var, Any]] = []

    def on_load(load: Any) -> Any:
        if not _is_run(load, column, count):
            return load
        for var, other in found:
            if tvm_ffi.structural_equal(load, other):
                return var
        var = tirx.Var(f"run{len(found)}", str(load.source.dtype))
        found.append((var, load))
        return var

    expr = tvm_ffi.structural_map(ending.expr, (ir.TensorLoad, on_load), order="post")
    return dataclasses.replace(ending, expr=expr), tuple(found)


def _is_run(load: Any, column: tirx.Var, count: int) -> bool:
    """Whether ``count`` columns from a multiple of it on read a whole, aligned vector."""
    if not len(load.indices) or str(load.source.dtype) == "bool":  # no vectors of conditions
        return False
    *others, last = load.indices
    while isinstance(last, tirx.Cast):
        last = last.value
    extent = load.source.shape[-1]
    if not isinstance(extent, tirx.IntImm) or int(extent) % count or not last.same_as(column):
        return False
    used: set[Any] = set()
    for index in others:
        tvm_ffi.structural_walk(index, (tirx.Var, used.add), order="post")
    return column not in used


def identity(accumulator: str, out: str, rank: int = 3) -> Epilogue:
    """Stores the sum as ``out``."""
    acc = tirx.Var("acc", accumulator)
    axes = tuple(tirx.Var(name, "int32") for name in ("i", "j", "k", "l")[:rank])
    return Epilogue(acc, axes, acc if accumulator == out else tirx.Cast(out, acc))


def substitute(expr: Any, values: Mapping[Any, Any], buffers: Sequence[tuple[Any, Any]]) -> Any:
    """``expr`` with other expressions for variables, and other buffers to load from."""

    def on_load(load: Any) -> Any:
        for old, new in buffers:
            if load.source.same_as(old):
                return new[tuple(load.indices)]
        return load

    return tvm_ffi.structural_map(
        expr,
        [(tirx.Var, lambda v: values.get(v, v)), (ir.TensorLoad, on_load)],
        order="post",
    )
