"""Attention as exporters write it, in Relax."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax

Emit = Callable[[relax.Expr], relax.Var]


def module(
    body: Callable[..., relax.Expr], *operands: tuple[tuple[int, ...], str], outputs: int = 1
) -> tvm.IRModule:
    """Return a module whose ``main`` is ``body(emit, *operands)``."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{n}", relax.TensorType(shape, dtype))
        for n, (shape, dtype) in enumerate(operands)
    ]
    with builder.function("main", params, {"num_input": len(params)}):
        with builder.dataflow():
            made = body(builder.emit, *params)
            result = builder.emit_output(made)
        builder.emit_func_output(result)
    return builder.get()


def constant(data: np.ndarray | float, dtype: str = "float32") -> relax.Expr:
    """Return a constant."""
    return relax.const(data, dtype)


def bert(
    emit: Emit,
    q: relax.Var,
    k: relax.Var,
    v: relax.Var,
    mask: relax.Var,
    dtype: str = "float32",
) -> relax.Expr:
    """Return attention of (batch, length, heads, size) tensors: scaled scores plus a mask."""
    left = emit(relax.op.permute_dims(q, [0, 2, 1, 3]))
    right = emit(relax.op.permute_dims(k, [0, 2, 3, 1]))
    scores = emit(relax.op.divide(emit(relax.op.matmul(left, right)), constant(4.0, dtype)))
    weights = emit(relax.op.nn.softmax(emit(relax.op.add(scores, mask))))
    values = emit(relax.op.permute_dims(v, [0, 2, 1, 3]))
    return relax.op.permute_dims(emit(relax.op.matmul(weights, values)), [0, 2, 1, 3])
