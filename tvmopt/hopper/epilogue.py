"""What is stored in place of a sum: an expression of it, of where it stands, and of inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
        self, value: Any, indices: Sequence[Any], buffers: Sequence[tuple[Any, Any]] = ()
    ) -> Any:
        """The expression for one element.

        Args:
            value: Its sum.
            indices: Its place in the output.
            buffers: Pairs: one of ``inputs``, and what to read in its place.
        """
        values: dict[Any, Any] = {self.acc: value}
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


def identity(accumulator: str, out: str, rank: int = 3) -> Epilogue:
    """Stores the sum as ``out``."""
    acc = tirx.Var("acc", accumulator)
    axes = tuple(tirx.Var(name, "int32") for name in ("i", "j", "k", "l")[:rank])
    return Epilogue(acc, axes, acc if accumulator == out else tirx.Cast(out, acc))


def elementwise(
    accumulator: str,
    out: str,
    compute: Callable[..., Any],
    inputs: Sequence[tuple[str, Sequence[int], Sequence[int]]] = (),
    rank: int = 3,
) -> Epilogue:
    """An epilogue from a Python function.

    Args:
        accumulator: Type of the sum.
        out: Type of the output; what ``compute`` gives is cast to it.
        compute: Takes the sum, then one element of each input, and gives what to store.
        inputs: Of each its type, shape, and for each of its axes the axis of the output that
            indexes it (-1 for index 0).
        rank: Axes of the output.
    """
    acc = tirx.Var("acc", accumulator)
    axes = tuple(tirx.Var(name, "int32") for name in ("i", "j", "k", "l")[:rank])
    buffers = []
    loads = []
    for number, (dtype, shape, along) in enumerate(inputs):
        buffer = tirx.decl_buffer(tuple(shape), dtype, name=f"extra{number}")
        zero = tirx.IntImm("int32", 0)
        buffers.append(buffer)
        loads.append(buffer[tuple(axes[a] if a >= 0 else zero for a in along)])
    value = compute(acc, *loads)
    if str(value.ty.dtype) != out:
        value = tirx.Cast(out, value)
    return Epilogue(acc, axes, value, tuple(buffers))


def substitute(
    expr: Any, values: Mapping[Any, Any], buffers: Sequence[tuple[Any, Any]]
) -> Any:
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
