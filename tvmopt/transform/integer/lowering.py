"""Lower quantized (QDQ) models to integer operators: traversal of the function.

before -> after, x and w quantized to 8 bits:
    y = quantize(relu(add(conv2d(dequantize(x), dequantize(w)), dequantize(b))))
    ->
    acc = conv2d(x, w, out_dtype="int32")
    y = astype(clip(add(round(multiply(astype(add(acc, b), "float32"), s)), z), z, 255), "uint8")

The rule of its operator gives every float variable a value (:mod:`.values`). An operator without a
rule stays a float operator, with dequantized operands. Each user dequantizes for itself, so that
fusion can put the dequantize into the user's kernel and no float tensor is stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.anchors import Anchor, anchors, is_anchor
from tvmopt.transform.integer import arithmetic, contraction, movement, pooling
from tvmopt.transform.integer.context import Context, Rule
from tvmopt.transform.integer.emit import Emitter
from tvmopt.transform.integer.hidden import simplify_quantised
from tvmopt.transform.integer.values import (
    Constant,
    Linear,
    QuantParams,
    Term,
    Value,
    along_axis,
    array_of,
    static_shape,
)
from tvmopt.transform.uses import uses_of

_QUANTISED_TYPES = ("int8", "uint8", "int16", "uint16")

_RULES: dict[str, Rule] = {
    "relax.add": arithmetic.add,
    "relax.subtract": arithmetic.subtract,
    "relax.multiply": arithmetic.multiply,
    "relax.divide": arithmetic.divide,
    "relax.negative": arithmetic.negative,
    "relax.nn.relu": arithmetic.relu,
    "relax.nn.relu6": arithmetic.relu6,
    "relax.clip": arithmetic.clip,
    "relax.maximum": arithmetic.bound_rule(lower=True),
    "relax.minimum": arithmetic.bound_rule(lower=False),
    "relax.concat": movement.concat,
    "relax.split": movement.split,
    "relax.mean": pooling.mean,
    "relax.sum": pooling.mean,
    "relax.nn.avg_pool1d": pooling.average,
    "relax.nn.avg_pool2d": pooling.average,
    "relax.nn.avg_pool3d": pooling.average,
    "relax.nn.adaptive_avg_pool1d": pooling.adaptive_average,
    "relax.nn.adaptive_avg_pool2d": pooling.adaptive_average,
    "relax.nn.adaptive_avg_pool3d": pooling.adaptive_average,
    **dict.fromkeys(movement.MOVEMENTS, movement.move),
}

_PRODUCTS: dict[str, Callable[[Context, relax.Call], Linear | str]] = {
    "relax.matmul": contraction.matmul,
    **{
        f"relax.nn.conv{n}d{suffix}": contraction.convolution
        for n in (1, 2, 3)
        for suffix in ("", "_transpose")
    },
}


@dataclasses.dataclass(frozen=True)
class IntegerResult:
    """Result of :func:`lower_quantized`.

    Attributes:
        mod: The module with integer operators.
        floats: Layers (by index) that stay in floating point, with the reason.
    """

    mod: tvm.IRModule
    floats: dict[int, str]


def lower_quantized(mod: tvm.IRModule) -> IntegerResult:
    """Replace dequantize - operator - quantize patterns of ``main`` by integer operators.

    Args:
        mod: An imported module, **not** simplified: simplification folds dequantized weights to
            floats, and their layers then stay in floating point. The result is simplified.

    Returns:
        The module; unchanged when it has no quantize and no dequantize. The anchors of ``mod`` keep
        their order. Results equal ONNX Runtime's within one quantization step per layer.
    """
    if not _is_quantised(mod):
        reasons = {anchor.index: "the model is not quantised" for anchor in anchors(mod)}
        return IntegerResult(mod, reasons)
    return _Lowering(simplify_quantised(mod)).run()


class _Lowering:
    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._main: relax.Function = mod["main"]
        others = {v: f for v, f in mod.functions_items() if v.name_hint != "main"}
        self._emitter = Emitter(relax.BlockBuilder(tvm.IRModule(others, attrs=mod.attrs)))
        self._values: dict[relax.Var, Value] = {}
        self._context = Context(self._emitter, self._values, self._quantised_later)
        self._uses = uses_of(self._main)
        self._reasons: dict[relax.Var, str] = {}
        self._integer: set[relax.Var] = set()
        self._quantised: dict[tuple[object, ...], relax.Expr] = {}

    def run(self) -> IntegerResult:
        found = anchors(self._mod)
        builder, main = self._emitter.builder, self._main
        attrs = dict(main.attrs.items()) if main.attrs else {}
        with builder.function("main", list(main.params), attrs):
            for block in main.body.blocks:
                self._block(block)
            builder.emit_func_output(self._output(main.body.body))
        out = builder.get()
        if "global_symbol" not in attrs:
            out["main"] = out["main"].without_attr("global_symbol")
        out = relax.transform.CanonicalizeBindings()(out)
        out = relax.transform.DeadCodeElimination(["main"])(out)
        left = [anchor for anchor in found if anchor.var not in self._integer]
        return IntegerResult(out, {anchor.index: self._reason(anchor) for anchor in left})

    def _reason(self, anchor: Anchor) -> str:
        return self._reasons.get(anchor.var, "it is in a branch of an If")

    def _block(self, block: relax.BindingBlock) -> None:
        self._quantised.clear()  # its variables are not visible in other blocks
        if not isinstance(block, relax.DataflowBlock):
            for binding in block.bindings:
                self._binding(binding, outside=False)
            return
        with self._emitter.builder.dataflow():
            for binding in block.bindings:
                outside = not isinstance(binding.var, relax.DataflowVar)
                self._binding(binding, outside=outside)

    def _binding(self, binding: relax.Binding, *, outside: bool) -> None:
        var = binding.var
        if isinstance(binding, relax.MatchCast):
            source = self._emitter.floats(self._context.value(binding.value))
            value: Value = self._emitter.builder.match_cast(source, binding.ty)
        else:
            value = self._value(var, binding.value)
        if outside:  # used after the dataflow block, thus an output of it
            value = self._emitter.builder.emit_output(self._emitter.floats(value), var.name)
        elif isinstance(value, Linear) and value.accumulates and len(self._uses.get(var, ())) > 1:
            value = self._emitter.floats(value)  # avoids storing int32 for several users
        self._values[var] = value

    def _value(self, var: relax.Var, expr: relax.Expr) -> Value:
        if isinstance(expr, relax.Var | relax.Tuple):
            return self._context.value(expr)
        if isinstance(expr, relax.TupleGetItem):
            value = self._context.value(expr.tuple_value)
            if isinstance(value, tuple):
                return value[expr.index]
        if isinstance(expr, relax.Call):
            found = self._call(var, expr)
            if found is not None:
                return found
        if array_of(expr) is not None:
            return expr
        return self._emitter.emit(self._on_floats(expr), var.name)

    def _call(self, var: relax.Var, call: relax.Call) -> Value | None:
        name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        if name == "relax.dequantize":
            return _dequantised(self._context, call)
        if name == "relax.quantize":
            return self._quantise(call)
        if name in _PRODUCTS:
            value = _PRODUCTS[name](self._context, call)
            if isinstance(value, Linear):
                self._integer.add(var)
                return value
            self._reasons[var] = value
            return None
        if is_anchor(call):
            self._reasons[var] = f"{name.removeprefix('relax.')} has no integer form"
            return None
        rule = _RULES.get(name)
        return rule(self._context, var, call) if rule else None

    def _quantise(self, call: relax.Call) -> Value | None:
        params = _parameters(call)
        if params is None or str(call.args[0].ty.dtype) != "float32":
            return None
        arg = call.args[0]
        key = (arg, params.scale.tobytes(), params.zero.tobytes(), params.dtype)
        if not isinstance(arg, relax.Var):
            return self._emitter.quantised(self._context.value(arg), params)
        if key not in self._quantised:
            value = self._context.value(arg)
            self._quantised[key] = self._emitter.quantised(value, params)
        return self._quantised[key]

    def _quantised_later(self, var: relax.Var) -> QuantParams | None:
        """Return the parameters of the quantize that ``var`` reaches through movement alone."""
        while True:
            uses = self._uses.get(var, [])
            if len(uses) != 1 or uses[0] is None:
                return None
            call = uses[0].value
            if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
                return None
            if call.op.name == "relax.quantize":
                params = _parameters(call)
                return params if params is not None and params.per_tensor else None
            if not movement.commutes(call) or not call.args[0].same_as(var):
                return None
            var = uses[0].var

    def _on_floats(self, expr: relax.Expr) -> relax.Expr:
        """Return ``expr`` with every variable replaced by its float value."""
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            known: dict[relax.Var, relax.Expr] = {}
            args = [self._argument(arg, known) for arg in expr.args]
            return relax.Call(expr.op, args, expr.attrs, expr.ty_args, expr.span)
        names = relax.analysis.free_vars(expr)
        known = {v: self._emitter.floats(self._values[v]) for v in names if v in self._values}
        return _SubstituteIntegers(known).visit_expr(expr)

    def _argument(self, arg: relax.Expr, known: dict[relax.Var, relax.Expr]) -> relax.Expr:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._argument(field, known) for field in arg.fields])
        if not isinstance(arg, relax.Var):
            return arg
        if arg not in known:
            known[arg] = self._emitter.floats(self._context.value(arg))
        return known[arg]

    def _output(self, expr: relax.Expr) -> relax.Expr:
        return self._argument(expr, {})


@mutator
class _SubstituteIntegers(PyExprMutator):
    def __init__(self, known: dict[relax.Var, relax.Expr]) -> None:
        super().__init__()
        self._known = known

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        return self._known.get(op, op)

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        return self._known.get(op, op)


def _is_quantised(mod: tvm.IRModule) -> bool:
    found = False

    def visit(expr: relax.Expr) -> None:
        nonlocal found
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            found = found or expr.op.name in ("relax.quantize", "relax.dequantize")

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def _dequantised(ctx: Context, call: relax.Call) -> Value | None:
    data = ctx.value(call.args[0])
    params = _parameters(call)
    if params is None or str(call.ty.dtype) != "float32":
        return None
    known = array_of(data)
    if known is not None:
        return Constant(known, params.scale, params.zero)
    shape = static_shape(call)
    if shape is None or params.dtype not in _QUANTISED_TYPES or not isinstance(data, relax.Expr):
        return None
    return Linear((Term(data, params.scale, -params.zero),), shape)


def _parameters(call: relax.Call) -> QuantParams | None:
    """Return constant scale and zero point of a quantize or dequantize; None for other forms."""
    shape = static_shape(call)
    integer = call if call.op.name == "relax.quantize" else call.args[0]
    scale, zero = (array_of(arg) for arg in call.args[1:3])
    if shape is None or scale is None or zero is None or scale.dtype != np.float32:
        return None
    dtype = str(integer.ty.dtype)
    allowed = (*_QUANTISED_TYPES, "int32") if integer is not call else _QUANTISED_TYPES
    if dtype not in allowed:
        return None
    axis = int(call.attrs.axis)
    for array in (scale, zero):
        along = -len(shape) <= axis < len(shape) and array.size == shape[axis]
        if array.size != 1 and not (array.ndim == 1 and along):
            return None
    return QuantParams(
        along_axis(scale, axis, len(shape)),
        along_axis(zero.astype(np.int32), axis, len(shape)),
        dtype,
    )
