"""Values cross memory in the low type: the up-cast moves from where they are made to their readers.

before -> after, of fused functions::

    a = fused_conv2d_add_cast_cast(x)  # f16    a = fused_conv2d_add_cast(x)     # f16
                      ^ float32                 b = fused_conv2d_cast_add(y, a)  # casts as it loads
    b = fused_conv2d_add(y, a)

FuseOps fuses elementwise operators forwards, so an up-cast lands in the group of the value, which
then is written in float32 (and, merged with others by the elimination of common subexpressions, in
a function of its own). In :func:`tvmopt.transform.lower.lower` this pass is between FuseOps and
FuseTIR.
"""

from __future__ import annotations

import dataclasses

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from .fusion import ELEMENTWISE, OPAQUE, REDUCTION

_LOW = ("float16", "bfloat16")
_CALL_TIR = "relax.call_tir"


@tvm.transform.module_pass(opt_level=0, name="WidenOnLoad")
class WidenOnLoad:
    """Move up-casts into the functions that read them; see the module's docstring."""

    def transform_module(
        self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        main = mod["main"]
        widened = _widened(mod, main)
        return _rewrite(mod, main, widened) if widened else mod


@dataclasses.dataclass(frozen=True)
class _Widened:
    """A float32 value of ``main`` that is the up-cast of a low one.

    Attributes:
        cast: The function that casts.
        low: The low value, a variable of ``main``; None when it is inside the function that gives
            the float32 value.
        dtype: Its type.
    """

    cast: tvm.ir.GlobalVar
    low: relax.Var | None
    dtype: str


def _widened(mod: tvm.IRModule, main: relax.Function) -> dict[relax.Var, _Widened]:
    """Up-casts that at least one reader (every reader, where they end a function) can take in."""
    found: dict[relax.Var, _Widened] = {}
    readers: dict[relax.Var, list[bool]] = {}
    for block in main.body.blocks:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            item = _up_cast(mod, value) if isinstance(block, relax.DataflowBlock) else None
            if item is not None and isinstance(binding.var, relax.DataflowVar):
                found[binding.var] = item
            args = _arguments(mod, value)
            for i, arg in enumerate(args):
                if isinstance(arg, relax.Var):
                    readers.setdefault(arg, []).append(_takes_cast(mod, value, i))
            if not args and value is not None:
                for var in relax.analysis.free_vars(value):
                    readers.setdefault(var, []).append(False)
    taken = {}
    for var, item in found.items():
        able = readers.get(var, [False])
        if all(able) or (item.low is not None and any(able)):
            taken[var] = item
    return taken


def _arguments(mod: tvm.IRModule, value: relax.Expr | None) -> list[relax.Expr]:
    """Tensors that a call of a fused function, or of one TensorIR function, reads."""
    if not isinstance(value, relax.Call):
        return []
    if isinstance(value.op, tvm.ir.GlobalVar) and isinstance(mod[value.op], relax.Function):
        return list(value.args)
    if getattr(value.op, "name", "") == _CALL_TIR and isinstance(value.args[1], relax.Tuple):
        return list(value.args[1].fields)
    return []


def _up_cast(mod: tvm.IRModule, value: relax.Expr | None) -> _Widened | None:
    if not isinstance(value, relax.Call):
        return None
    if isinstance(value.op, tvm.ir.GlobalVar):
        func = mod[value.op]
        last = _last(func) if isinstance(func, relax.Function) else None
        inner = _up_cast(mod, last) if last is not None else None
        if inner is None or inner.low is None or inner.low in list(func.params):
            return None
        return _Widened(inner.cast, None, inner.dtype)
    args = _arguments(mod, value)
    if len(args) != 1 or not isinstance(args[0], relax.Var) or not _is_cast(mod, value):
        return None
    return _Widened(value.args[0], args[0], str(args[0].ty.dtype))


def _last(func: relax.Function) -> relax.Expr | None:
    """What the single result of a fused function is bound to."""
    if len(func.body.blocks) != 1 or not isinstance(func.body.body, relax.Var):
        return None
    last = func.body.blocks[0].bindings[-1]
    return last.value if last.var.same_as(func.body.body) else None


def _is_cast(mod: tvm.IRModule, call: relax.Call) -> bool:
    source = call.args[1].fields[0].ty
    result = call.ty_args[0]
    if not isinstance(result, relax.TensorType) or str(result.dtype) != "float32":
        return False
    if not isinstance(source, relax.TensorType) or str(source.dtype) not in _LOW:
        return False
    func = mod[call.args[0]]
    if not isinstance(func, tirx.PrimFunc) or _pattern(mod, call.args[0]) != ELEMENTWISE:
        return False
    statement = func.body
    while not isinstance(statement, tirx.BufferStore):
        # Loops and blocks have a body, the place where a block stands has the block.
        statement = getattr(statement, "block", None) or getattr(statement, "body", None)
        if statement is None:
            return False
    stored = statement.value
    return isinstance(stored, tirx.Cast) and isinstance(stored.value, tvm.ir.TensorLoad)


def _pattern(mod: tvm.IRModule, var: tvm.ir.GlobalVar) -> int:
    return int((mod[var].attrs or {}).get("op_pattern", OPAQUE))


def _takes_cast(mod: tvm.IRModule, call: relax.Call, position: int) -> bool:
    """Whether what reads this argument is elementwise, injective or a reduction."""
    if not isinstance(call.op, tvm.ir.GlobalVar):
        return _pattern(mod, call.args[0]) <= REDUCTION
    func = mod[call.op]
    param = func.params[position]
    for binding in func.body.blocks[0].bindings:
        inner = binding.value
        if param in list(relax.analysis.free_vars(inner)):
            known = isinstance(inner, relax.Call) and getattr(inner.op, "name", "") == _CALL_TIR
            if not known or _pattern(mod, inner.args[0]) > REDUCTION:
                return False
    return not param.same_as(func.body.body)


def _rewrite(
    mod: tvm.IRModule, main: relax.Function, widened: dict[relax.Var, _Widened]
) -> tvm.IRModule:
    builder = relax.BlockBuilder(mod)
    made: dict[tuple[object, ...], tvm.ir.GlobalVar] = {}
    renamed: dict[relax.Var, relax.Var] = {}  # float32 variable -> low variable

    def variant(call: relax.Call, casts: dict[int, _Widened], drops: bool) -> relax.Call:
        fused = isinstance(call.op, tvm.ir.GlobalVar)
        source = call.op if fused else call.args[0]
        chosen = tuple((i, item.cast.name_hint) for i, item in casts.items())
        key = (source.name_hint, chosen, drops)
        args = [
            renamed[arg] if i in casts else substitute.visit_expr(arg)
            for i, arg in enumerate(_arguments(mod, call))
        ]
        if key not in made:
            whole = mod[source] if fused else _wrapped(call)
            for i, item in casts.items():
                whole = _widen_param(whole, i, item)
            if drops:
                whole = _without_last(whole)
            made[key] = builder.add_func(whole, source.name_hint)
        return relax.Call(made[key], args)

    blocks = []
    substitute = _Substitute({})
    for block in main.body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            item = widened.get(binding.var)
            if item is not None and item.low is not None:
                renamed[binding.var] = substitute.map.get(item.low, item.low)
            args = _arguments(mod, value)
            casts = {
                i: widened[arg]
                for i, arg in enumerate(args)
                if isinstance(arg, relax.Var)
                and arg in widened
                and _takes_cast(mod, value, i)
            }
            drops = item is not None and item.low is None
            if casts or drops:
                call = variant(value, casts, drops)
                ty = _low_type(binding.var, item.dtype) if item and drops else binding.var.ty
                var = type(binding.var)(binding.var.name, ty)
                if drops:
                    renamed[binding.var] = var
                else:
                    substitute.map[binding.var] = var
                bindings.append(relax.VarBinding(var, call))
            else:
                bindings.append(substitute.binding(binding))
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, substitute.visit_expr(main.body.body))
    changed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    builder.update_func(mod.get_global_var("main"), changed)
    return relax.transform.Normalize()(builder.get())


def _low_type(var: relax.Var, dtype: str) -> relax.TensorType:
    return relax.TensorType(var.ty.shape, dtype)


def _wrapped(call: relax.Call) -> relax.Function:
    """A fused function of one call, as FuseOps makes them of several."""
    fields = call.args[1].fields
    params = [
        relax.Var(f"param_{i}", field.ty) for i, field in enumerate(fields)
    ]
    inner = relax.Call(call.op, [call.args[0], relax.Tuple(params)], call.attrs, call.ty_args)
    out = relax.Var("gv", call.ty_args[0])
    block = relax.DataflowBlock([relax.VarBinding(out, inner)])
    func = relax.Function(params, relax.SeqExpr([block], out), out.ty)
    return func.with_attr("Primitive", True)


def _widen_param(func: relax.Function, position: int, item: _Widened) -> relax.Function:
    old = func.params[position]
    low = relax.Var(old.name, _low_type(old, item.dtype))
    wide = relax.DataflowVar(f"{old.name}_wide", old.ty)
    call = relax.call_tir(item.cast, [low], old.ty)
    substitute = _Substitute({old: wide})
    bindings = [relax.VarBinding(wide, call)]
    bindings += [substitute.binding(b) for b in func.body.blocks[0].bindings]
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], func.body.body)
    params = [low if i == position else p for i, p in enumerate(func.params)]
    return relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs)


def _without_last(func: relax.Function) -> relax.Function:
    """``func`` without its final cast, giving what that read."""
    *kept, last = func.body.blocks[0].bindings
    low = last.value.args[1].fields[0]
    out = relax.Var("gv", low.ty)
    # A dataflow block gives out variables of another kind than those it keeps to itself.
    substitute = _Substitute({low: out})
    bindings = [
        relax.VarBinding(out, b.value) if b.var.same_as(low) else substitute.binding(b)
        for b in kept
    ]
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], out)
    return relax.Function(func.params, body, out.ty, func.is_pure, func.attrs)


@mutator
class _Substitute(PyExprMutator):
    def __init__(self, replaced: dict[relax.Var, relax.Var]) -> None:
        super().__init__()
        self.map = replaced

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        return self.map.get(op, op)

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        return self.map.get(op, op)

    def binding(self, binding: relax.Binding) -> relax.Binding:
        """``binding`` with other variables read."""
        if isinstance(binding, relax.VarBinding):
            return relax.VarBinding(binding.var, self.visit_expr(binding.value))
        return relax.MatchCast(binding.var, self.visit_expr(binding.value), binding.ty)
