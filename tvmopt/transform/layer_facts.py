"""Report dtype and layout of each layer of a converted module."""

from __future__ import annotations

import dataclasses
import math

import tvm
from tvm import relax

from tvmopt.device.dtypes import BYTE_INTEGERS, HALF_FLOATS, itemsize
from tvmopt.transform.anchors import Anchor, anchors

_ELEMENTWISE = frozenset({
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "clip", "round", "floor",
    "ceil", "trunc", "sign", "negative", "abs", "astype", "sigmoid", "tanh", "erf", "exp", "log",
    "sqrt", "rsqrt", "square", "power", "where", "nn.relu", "nn.relu6", "nn.leakyrelu", "nn.gelu",
    "nn.gelu_tanh", "nn.silu", "nn.prelu", "quantize", "dequantize", "greater", "less", "equal",
})  # fmt: skip

# Values of these dtypes are stored to memory.
_NARROW = (*BYTE_INTEGERS, *HALF_FLOATS)

# For each variable, the variables of the elementwise operators that read it. None stands for any
# other reader, which needs the value in memory, or for the function's result.
_Users = dict[relax.Var, list[relax.Var | None]]


@dataclasses.dataclass(frozen=True)
class LayerFacts:
    """Facts of one layer after conversion.

    Attributes:
        dtype: dtype of the weight (the second operand), which is the compute dtype.
        input_dtype: dtype of the first operand as stored.
        output_dtype: dtype of the stored result, after fused elementwise operators. Several
            dtypes are joined by ``/`` when the result is stored more than once.
        layout: Data layout of a convolution, otherwise empty.
        bytes: Size in bytes of both operands and of the stored result.
    """

    dtype: str
    input_dtype: str
    output_dtype: str
    layout: str
    bytes: int


def layer_facts(mod: tvm.IRModule) -> dict[int, LayerFacts]:
    """Return the facts of every layer of ``main`` by index; two anchors give the first's facts."""
    users = _users(mod["main"])
    facts: dict[int, LayerFacts] = {}
    for anchor in anchors(mod):
        facts.setdefault(anchor.index, _facts(anchor, users))
    return facts


def _facts(anchor: Anchor, users: _Users) -> LayerFacts:
    data, weight = anchor.call.args[0], anchor.call.args[1]
    stored = sorted(_stored_dtypes(anchor.var, users)) or [_dtype(anchor.var)]
    layout = str(getattr(anchor.call.attrs, "data_layout", "") or "")
    size = _elements(anchor.var) * itemsize(stored[0])
    size += sum(_elements(x) * itemsize(_dtype(x)) for x in (data, weight))
    return LayerFacts(_dtype(weight), _dtype(data), "/".join(stored), layout, math.ceil(size))


def _users(main: relax.Function) -> _Users:
    found: _Users = {}

    def use(expr: relax.Expr, by: relax.Var | None) -> None:
        if isinstance(expr, relax.Var):
            found.setdefault(expr, []).append(by)
        elif isinstance(expr, relax.Tuple):
            for field in expr.fields:
                use(field, by)

    def visit(body: relax.Expr) -> None:
        for block in body.blocks if isinstance(body, relax.SeqExpr) else []:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.If):
                    visit(value.true_branch)
                    visit(value.false_branch)
                elif isinstance(value, relax.Call):
                    for arg in value.args:
                        use(arg, binding.var if is_elementwise(value) else None)
                else:
                    use(value, binding.var if isinstance(value, relax.Var) else None)
        use(body.body if isinstance(body, relax.SeqExpr) else body, None)

    visit(main.body)
    return found


def _stored_dtypes(var: relax.Var, users: _Users) -> set[str]:
    """Return the dtypes of values stored after the elementwise operators that follow ``var``."""
    dtypes, seen, todo = set(), {var}, [var]
    while todo:
        value = todo.pop()
        readers = users.get(value, [])
        if None in readers or _dtype(value) in _NARROW:
            dtypes.add(_dtype(value))
        if _dtype(value) in _NARROW:
            continue  # the next reader belongs to another layer
        for reader in readers:
            if reader is not None and reader not in seen:
                seen.add(reader)
                todo.append(reader)
    return dtypes


def is_elementwise(call: relax.Call) -> bool:
    """Return whether ``call`` is of an operator that computes each element on its own."""
    return isinstance(call.op, tvm.ir.Op) and call.op.name.removeprefix("relax.") in _ELEMENTWISE


def _dtype(expr: relax.Expr) -> str:
    return str(expr.ty.dtype)


def _elements(expr: relax.Expr) -> int:
    shape = getattr(expr.ty, "shape", None)
    if shape is None or not all(isinstance(d, tvm.tirx.IntImm) for d in shape):
        return 0
    return math.prod(int(d) for d in shape)
