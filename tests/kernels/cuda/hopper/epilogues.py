"""Build epilogues of Hopper kernels from Python functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from tvmopt.kernels.cuda.hopper.epilogue import Epilogue


def elementwise(
    accumulator: str,
    out: str,
    compute: Callable[..., Any],
    inputs: Sequence[tuple[str, Sequence[int], Sequence[int]]] = (),
    rank: int = 3,
) -> Epilogue:
    """Build an epilogue from a Python function.

    Args:
        accumulator: Dtype of the accumulator.
        out: Dtype of the output; the result of ``compute`` is cast to it.
        compute: Function of the accumulator and one element of each input; returns the output.
        inputs: For each input its dtype, its shape, and for each of its axes the output axis that
            indexes it (-1 for index 0).
        rank: Number of output axes.
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
