"""The TensorIR function around a recurrent layer's kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.recurrence.operands import Parameter
from tvmopt.kernels.scheduled import OPAQUE


def kernel_function(
    parameters: Sequence[Parameter], emit: Callable[[dict[str, tirx.Buffer]], None]
) -> tirx.PrimFunc:
    """Return a function that nothing is fused with.

    Args:
        parameters: Its parameters, in order.
        emit: Emits the body, given the parameters by name.
    """
    with IRBuilder() as builder, build.prim_func(is_private=True, s_tir=True):
        build.func_name("main")
        build.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        emit(
            {name: build.arg(name, build.buffer(shape, dtype)) for name, shape, dtype in parameters}
        )
    return builder.get()
