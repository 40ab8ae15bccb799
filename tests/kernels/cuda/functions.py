"""Small TensorIR functions: operators as Relax lowers them, and hand-written ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

Operand = tuple[tuple[int, ...], str]


def lowered(build: Callable[..., Any], *operands: Operand) -> tirx.PrimFunc:
    """Return the one TensorIR function that the operators of ``build`` lower to."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{n}", relax.TensorType(s, d)) for n, (s, d) in enumerate(operands)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(build(*params)))
        builder.emit_func_output(result)
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    module = tvm.transform.Sequential(passes)(builder.get())
    [func] = [f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    return func.with_attr("global_symbol", "main")


def computed(make: Callable[..., te.Tensor], *operands: Operand) -> tirx.PrimFunc:
    """Return the function of a tensor expression, with the 64-bit indices of Relax."""
    params = [
        te.placeholder(tuple(tirx.IntImm("int64", e) for e in s), d, name=f"x{n}")
        for n, (s, d) in enumerate(operands)
    ]
    func = te.create_prim_func([*params, make(*params)])
    return func.with_attr("global_symbol", "main")


def sums(axis: int, *operands: Operand) -> tirx.PrimFunc:
    """Sum of a matrix along ``axis``: accumulated in float32, stored in the matrix's dtype."""

    def make(x: te.Tensor) -> te.Tensor:
        r = te.reduce_axis((tirx.IntImm("int64", 0), x.shape[axis]), "r")

        def element(i: Any) -> Any:
            return te.sum(x[(r, i) if axis == 0 else (i, r)].astype("float32"), axis=r)

        total = te.compute((x.shape[1 - axis],), element, name="total")
        return te.compute(total.shape, lambda i: total[i].astype(x.dtype), name="stored")

    return computed(make, *operands)


def product(
    rows: int, n: int, k: int, dtype: str = "float16", transposed: bool = True
) -> tirx.PrimFunc:
    """GEMM of ``rows`` x ``k`` with a weight (``n`` x ``k`` if transposed), float32 accumulator."""

    def make(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        r = te.reduce_axis((tirx.IntImm("int64", 0), x.shape[1]), "r")

        def element(i: Any, j: Any) -> Any:
            weight = w[j, r] if transposed else w[r, j]
            return te.sum(x[i, r].astype("float32") * weight.astype("float32"), axis=r)

        columns = w.shape[0 if transposed else 1]
        total = te.compute((x.shape[0], columns), element, name="total")
        return te.compute(total.shape, lambda i, j: total[i, j].astype(dtype), name="stored")

    weight = (n, k) if transposed else (k, n)
    return computed(make, ((rows, k), dtype), (weight, dtype))


def int4_product(
    rows: int, n: int, k: int, group: int, dtype: str = "float16", whole: bool = False
) -> tirx.PrimFunc:
    """GEMV with int4 weights, eight a word; the zero point 8 is an integer if ``whole``."""

    def make(x: te.Tensor, words: te.Tensor, scales: te.Tensor) -> te.Tensor:
        def weight(j: Any, r: Any) -> Any:
            value = (words[j, r // 8] >> (r % 8 * 4).astype("uint32")) & tirx.const(15, "uint32")
            if whole:
                value = (value.astype("int32") - 8).astype(dtype)
            else:
                value = value.astype(dtype) - tirx.const(8, dtype)
            return value * scales[j, r // group].astype(dtype)

        depth = tirx.IntImm("int64", k)
        decoded = te.compute((words.shape[0], depth), weight, name="decoded")
        r = te.reduce_axis((tirx.IntImm("int64", 0), depth), "r")

        def element(i: Any, j: Any) -> Any:
            return te.sum(x[i, r].astype("float32") * decoded[j, r].astype("float32"), axis=r)

        total = te.compute((x.shape[0], words.shape[0]), element, name="total")
        return te.compute(total.shape, lambda i, j: total[i, j].astype("float16"), name="stored")

    operands: Sequence[Operand] = (
        ((rows, k), "float16"), ((n, k // 8), "uint32"), ((n, k // group), "float16"),
    )  # fmt: skip
    return computed(make, *operands)
