"""Split a lowered module into one module per kernel call, with weights as constants.

before -> after: ``main(x) = call_tir(pool, call_tir(conv2d, (x, weight)))`` ->
``main(x0) = call_tir(conv2d, (x0, weight))`` and ``main(x0) = call_tir(pool, (x0,))``.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class SingleCall:
    """One call of a kernel.

    Attributes:
        name: Name of the kernel.
        func: PrimFunc of the kernel.
        module: Module whose ``main`` takes the kernel's non-constant inputs and calls it once.
    """

    name: str
    func: Any
    module: Any

    @property
    def inputs(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of each parameter of ``main``."""
        return [
            (tuple(int(e) for e in p.ty.shape), str(p.ty.dtype)) for p in self.module["main"].params
        ]


def single_calls(lowered: Any) -> list[SingleCall | None]:
    """Extract the kernel calls of ``main`` of a lowered module, in program order.

    A call with dynamic shapes or with constant inputs only becomes None.
    """
    return [
        _single(lowered, binding.value)
        for block in lowered["main"].body.blocks
        for binding in block.bindings
        if _is_kernel(binding.value)
    ]


def _is_kernel(value: Any) -> bool:
    import tvm
    from tvm import relax

    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, tvm.ir.Op)
        and value.op.name == "relax.call_tir"
    )


def _single(lowered: Any, call: Any) -> SingleCall | None:
    from tvm import ir, relax

    variable, arguments = call.args[0], list(call.args[1].fields)
    params: dict[Any, Any] = {}
    for argument in arguments:
        if isinstance(argument, relax.Var) and argument not in params:
            if not _is_static(argument.ty):
                return None
            params[argument] = relax.Var(f"x{len(params)}", argument.ty)
    if len(call.args) > 2 or not params:
        return None
    builder = relax.BlockBuilder()
    func = lowered[variable].with_attr("global_symbol", variable.name_hint)
    kernel = builder.add_func(func, variable.name_hint)
    inner = [params.get(a, a) if isinstance(a, relax.Var) else a for a in arguments]
    [result] = call.ty_args
    results = list(result.fields) if isinstance(result, ir.TupleType) else [result]
    with builder.function("main", list(params.values())):
        with builder.dataflow():
            made = builder.emit_output(relax.call_tir(kernel, inner, results))
        builder.emit_func_output(made)
    return SingleCall(variable.name_hint, lowered[variable], builder.get())


def _is_static(type_: Any) -> bool:
    from tvm import tirx

    shape = getattr(type_, "shape", None)
    return shape is not None and all(isinstance(extent, tirx.IntImm) for extent in shape)
