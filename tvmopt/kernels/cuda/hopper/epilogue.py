"""Epilogue: an elementwise expression of the accumulator, the output indices, and inputs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import tvm_ffi
from tvm import ir, tirx

from tvmopt.kernels.cuda.common.narrow_gelu import instructions, narrow_gelu


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """Elementwise function of one accumulator element.

    Attributes:
        acc: Variable for the accumulator element.
        axes: Variables for the output indices; the last one is the column.
        expr: The value to store, of the output's dtype.
        inputs: Buffers that ``expr`` loads from, in the order of the kernel's parameters.
    """

    acc: tirx.Var
    axes: tuple[tirx.Var, ...]
    expr: ir.Expr
    inputs: tuple[tirx.Buffer, ...] = ()

    def at(
        self,
        value: ir.Expr,
        indices: Sequence[ir.Expr],
        buffers: Sequence[tuple[tirx.Buffer, tirx.Buffer]] = (),
        runs: Sequence[tuple[tirx.Var, ir.Expr]] = (),
    ) -> ir.Expr:
        """Return the expression for one element.

        Args:
            value: Its accumulator.
            indices: Its indices in the output.
            buffers: Pairs of a buffer in ``inputs`` and the buffer to load from instead.
            runs: Pairs of a variable of :func:`split_runs` and the loaded value.
        """
        values: dict[tirx.Var, ir.Expr] = {self.acc: value, **dict(runs)}
        for axis, index in zip(self.axes, indices, strict=bool(indices)):
            dtype = str(axis.ty.dtype)
            values[axis] = index if str(index.ty.dtype) == dtype else tirx.Cast(dtype, index)
        return substitute(self.expr, values, buffers)

    @functools.cached_property
    def has_place(self) -> bool:
        """Whether the expression depends on the output indices or reads inputs."""
        used: set[tirx.Var] = set()
        tvm_ffi.structural_walk(self.expr, (tirx.Var, used.add), order="post")
        return bool(self.inputs) or any(axis in used for axis in self.axes)

    @functools.cached_property
    def narrowed(self) -> Epilogue:
        """The epilogue that a kernel computes: with a 16-bit output, GELU is approximated."""
        expr = narrow_gelu(self.expr, str(self.expr.ty.dtype))
        return dataclasses.replace(self, expr=expr)

    @functools.cached_property
    def work(self) -> float:
        """Approximate number of instructions for one element."""
        return _work(self.expr)

    def load_work(self, buffer: tirx.Buffer) -> float:
        """Return the part of :attr:`work` that loads from ``buffer``, its indices included."""
        found: list[ir.TensorLoad] = []
        tvm_ffi.structural_walk(self.expr, (ir.TensorLoad, found.append), order="post")
        return sum(_work(load) for load in found if load.source.same_as(buffer))

    @functools.cached_property
    def reads(self) -> tuple[tuple[tirx.Buffer, tuple[bool, ...]], ...]:
        """All loads: pairs of the buffer and, for each output axis, whether the index uses it."""
        found: list[ir.TensorLoad] = []
        tvm_ffi.structural_walk(self.expr, (ir.TensorLoad, found.append), order="post")
        result = []
        for load in found:
            used: set[tirx.Var] = set()
            for index in load.indices:
                tvm_ffi.structural_walk(index, (tirx.Var, used.add), order="post")
            result.append((load.source, tuple(axis in used for axis in self.axes)))
        return tuple(result)


def _work(expr: ir.Expr) -> float:
    """Return the approximate number of instructions of an expression."""
    total = 0.0

    def count(node: ir.Expr) -> None:
        nonlocal total
        if isinstance(node, ir.TensorLoad):
            total += 10.0
        elif isinstance(node, ir.Call):
            total += instructions(node) or 20.0
        elif isinstance(node, (tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod)):
            total += 10.0
        elif not isinstance(node, (tirx.Var, tirx.IntImm, tirx.FloatImm, ir.StringImm)):
            total += 1.0

    tvm_ffi.structural_walk(expr, (ir.Expr, count), order="post")
    return total


#: Variables of :func:`split_runs`, each with the load that it stands for.
Runs: TypeAlias = tuple[tuple[tirx.Var, ir.TensorLoad], ...]


def split_runs(epilogue: Epilogue, count: int) -> tuple[Epilogue, Runs]:
    """Replace contiguous loads of neighbouring columns by variables, for vector loads.

    Example, for ``count`` columns: ``acc + r[i, j]`` -> ``acc + run`` and the pair
    (``run``, ``r[i, j]``). One instruction loads ``run`` for all ``count`` columns.

    Args:
        epilogue: The epilogue.
        count: Number of columns; the first column is a multiple of it.

    Returns:
        The epilogue with variables in place of these loads; the variables with their loads.
    """
    column = epilogue.axes[-1]
    found: list[tuple[tirx.Var, ir.TensorLoad]] = []

    def on_load(load: ir.TensorLoad) -> ir.Expr:
        if not _is_run(load, column, count):
            return load
        for var, other in found:
            if tvm_ffi.structural_equal(load, other):
                return var
        var = tirx.Var(f"run{len(found)}", str(load.source.dtype))
        found.append((var, load))
        return var

    expr = tvm_ffi.structural_map(epilogue.expr, (ir.TensorLoad, on_load), order="post")
    return dataclasses.replace(epilogue, expr=expr), tuple(found)


def _is_run(load: ir.TensorLoad, column: tirx.Var, count: int) -> bool:
    """Whether ``count`` columns from an aligned one on load one whole, aligned vector."""
    if not len(load.indices) or str(load.source.dtype) == "bool":  # there are no bool vectors
        return False
    *others, last = load.indices
    while isinstance(last, tirx.Cast):
        last = last.value
    extent = load.source.shape[-1]
    if not isinstance(extent, tirx.IntImm) or int(extent) % count or not last.same_as(column):
        return False
    used: set[tirx.Var] = set()
    for index in others:
        tvm_ffi.structural_walk(index, (tirx.Var, used.add), order="post")
    return column not in used


def identity(accumulator: str, out: str, rank: int = 3) -> Epilogue:
    """Return the epilogue that only casts the accumulator to ``out``."""
    acc = tirx.Var("acc", accumulator)
    axes = tuple(tirx.Var(name, "int32") for name in ("i", "j", "k", "l")[:rank])
    return Epilogue(acc, axes, acc if accumulator == out else tirx.Cast(out, acc))


def substitute(
    expr: ir.Expr,
    values: Mapping[tirx.Var, ir.Expr],
    buffers: Sequence[tuple[tirx.Buffer, tirx.Buffer]],
) -> ir.Expr:
    """Return ``expr`` with variables replaced by expressions, and loads redirected to buffers."""

    def on_load(load: ir.TensorLoad) -> ir.Expr:
        for old, new in buffers:
            if load.source.same_as(old):
                return new[tuple(load.indices)]
        return load

    return tvm_ffi.structural_map(
        expr,
        [(tirx.Var, lambda v: values.get(v, v)), (ir.TensorLoad, on_load)],
        order="post",
    )
