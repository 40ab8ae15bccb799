"""Traversal of ``main`` that emits every binding in the chosen layout."""

from __future__ import annotations

import dataclasses

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.layout.choose import Wanted, choose_form
from tvmopt.transform.layout.form import LayoutForm
from tvmopt.transform.layout.layouts import ConvForms
from tvmopt.transform.layout.rules import RULES, Follow, Operands
from tvmopt.transform.layout.tensors import Forms, Tensor, static_shape
from tvmopt.transform.layout.views import VIEWS, flattened, view


@dataclasses.dataclass(frozen=True)
class _Other:
    """The new expression of a value that is not a tensor of static shape."""

    expr: relax.Expr


_Value = Tensor | _Other | tuple[Tensor, ...]


class Walk:
    """One traversal of ``main``.

    Args:
        mod: The module.
        planned: Convolutions to convert, with their forms.
    """

    def __init__(self, mod: tvm.IRModule, planned: dict[relax.Var, ConvForms]) -> None:
        self._main = mod["main"]
        self._planned = planned
        self._builder = relax.BlockBuilder()
        self._known: dict[relax.Var, _Value] = {}
        self.forms = Forms(self._builder, self._letters())
        self._operands = Operands(self.forms, self._known)

    def run(self) -> relax.Function:
        """Return the new ``main``."""
        self._calls = {
            binding.var: binding.value
            for block in self._main.body.blocks
            for binding in block.bindings
            if isinstance(binding, relax.VarBinding)
        }
        self._wanted = Wanted.of(self._calls, self._planned)
        with self._builder.function("main", list(self._main.params)):
            for param in self._main.params:
                self._bind(param, param)
            for block in self._main.body.blocks:
                self._block(block)
            self._builder.emit_func_output(self._original(self._main.body.body))
        return self._builder.get()["main"]

    def _letters(self) -> dict[int, str]:
        letters: dict[int, str] = {}
        for block in self._main.body.blocks:
            for binding in block.bindings:
                if binding.var in self._planned:
                    name = str(binding.value.attrs.data_layout)
                    letters.setdefault(len(name), name)
        return letters

    def _block(self, block: relax.BindingBlock) -> None:
        if not isinstance(block, relax.DataflowBlock):
            for binding in block.bindings:
                self._binding(binding)
            return
        with self._builder.dataflow():
            for binding in block.bindings:
                self._binding(binding)
            outputs = [b.var for b in block.bindings if not isinstance(b.var, relax.DataflowVar)]
            held = {
                var: self._builder.emit_output(self._original(var), var.name) for var in outputs
            }
        # Other forms of a tensor are not visible outside the dataflow block.
        for var, value in self._known.items():
            if isinstance(value, Tensor) and not isinstance(var, relax.DataflowVar):
                identity = LayoutForm.identity(len(value.shape))
                value.settle(held[var] if var in held else value.forms[identity])
            elif var in held:
                self._known[var] = _Other(held[var])

    def _binding(self, binding: relax.Binding) -> None:
        if isinstance(binding, relax.MatchCast):
            value = self._builder.match_cast(self._original(binding.value), binding.ty)
            self._bind(binding.var, value)
            return
        self._known[binding.var] = self._value(binding.var, self._calls[binding.var])

    def _bind(self, var: relax.Var, expr: relax.Expr) -> None:
        self._known[var] = self._plain(var, expr)

    def _plain(self, var: relax.Var, expr: relax.Expr) -> _Value:
        """Return the value of ``var`` when it is computed in the original form."""
        shape = static_shape(var.ty)
        if shape is None:
            return _Other(expr)
        tensor = Tensor(var.name, shape, str(var.ty.dtype))
        tensor.forms[LayoutForm.identity(len(shape))] = expr
        return tensor

    def _value(self, var: relax.Var, value: relax.Expr) -> _Value:
        if isinstance(value, (relax.Var, GenericConst)):
            tensor = self._operands.tensor(value)
            return self._known[value] if tensor is None else tensor
        if isinstance(value, relax.TupleGetItem):
            fields = self._known.get(value.tuple_value)
            if isinstance(fields, tuple):
                return fields[value.index]
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
            if var in self._planned:
                return self._convolution(var, value, self._planned[var])
            found = self._view(var, value) or self._matmul(var, value)
            if found is not None:
                return found
            rule = RULES.get(value.op.name)
            follow = rule(value, self._operands) if rule is not None else None
            if follow is not None:
                return self._follow(var, value, follow)
        return self._plain(var, self._builder.emit(self._original(value), var.name))

    def _convolution(self, var: relax.Var, call: relax.Call, forms: ConvForms) -> _Value:
        data, weight = (self._tensor(arg) for arg in call.args)
        attrs = call.attrs
        fields = {
            "strides": [int(s) for s in attrs.strides],
            "padding": [int(p) for p in attrs.padding],
            "dilation": [int(d) for d in attrs.dilation],
            "groups": int(attrs.groups),
            "data_layout": forms.data_layout,
            "kernel_layout": forms.kernel_layout,
            "out_layout": forms.data_layout,
            "out_dtype": attrs.out_dtype,
        }
        if hasattr(attrs, "output_padding"):
            fields["output_padding"] = [int(p) for p in attrs.output_padding]
        op = getattr(relax.op.nn, call.op.name.removeprefix("relax.nn."))
        args = self.forms.get(data, forms.data), self.forms.get(weight, forms.weight)
        out = Tensor(var.name, static_shape(call.ty) or (), str(call.ty.dtype))
        out.forms[forms.data] = self._builder.emit(op(*args, **fields), var.name)
        return out

    def _tensor(self, expr: relax.Expr) -> Tensor:
        tensor = self._operands.tensor(expr)
        if tensor is None:  # a constant that NumPy cannot hold
            tensor = Tensor("constant", static_shape(expr.ty) or (), str(expr.ty.dtype))
            tensor.forms[LayoutForm.identity(len(tensor.shape))] = expr
        return tensor

    def _view(self, var: relax.Var, call: relax.Call) -> Tensor | None:
        if call.op.name not in VIEWS:
            return None
        base = self._operands.tensor(call.args[0])
        return None if base is None or base.is_constant else view(var.name, call, base)

    def _matmul(self, var: relax.Var, call: relax.Call) -> _Value | None:
        """Permute the rows of a constant weight instead of converting a flattened tensor."""
        if call.op.name != "relax.matmul":
            return None
        left, right = (self._operands.tensor(arg) for arg in call.args)
        if left is None or right is None or right.data is None or right.data.ndim != 2:
            return None
        found = flattened(left)
        if found is None:
            return None
        base, form, columns = found
        rows = relax.const(np.ascontiguousarray(right.data[columns]), right.dtype)
        held = self.forms.get(base, form)
        flat = self._builder.emit(relax.op.reshape(held, left.shape))
        out = relax.op.matmul(flat, rows, call.attrs.out_dtype)
        return self._plain(var, self._builder.emit(out, var.name))

    def _follow(self, var: relax.Var, call: relax.Call, follow: Follow) -> _Value:
        operands = [t for t, _ in follow.needs(LayoutForm.identity(len(follow.frame))) or []]
        if operands and all(t.is_constant for t in operands):
            return self._constant(var, call, follow)
        form = choose_form(var, call, follow, self.forms, self._wanted)
        return self._outputs(var, call, follow, form, self._emit(follow, form, var.name))

    def _emit(self, follow: Follow, form: LayoutForm, name: str) -> relax.Expr:
        held = [self.forms.get(t, f) for t, f in follow.needs(form) or []]
        return self._builder.emit(follow.emit(form, held), name)

    def _outputs(
        self, var: relax.Var, call: relax.Call, follow: Follow, form: LayoutForm, out: relax.Expr
    ) -> _Value:
        if not isinstance(call.ty, relax.TupleType):
            return self._output(var.name, call.ty, follow.gives(form)[0], out)
        return tuple(
            self._output(
                f"{var.name}_{k}", ty, gives, self._builder.emit(relax.TupleGetItem(out, k))
            )
            for k, (ty, gives) in enumerate(zip(call.ty.fields, follow.gives(form), strict=True))
        )

    def _output(self, name: str, ty: relax.Type, form: LayoutForm, expr: relax.Expr) -> Tensor:
        tensor = Tensor(name, static_shape(ty) or (), str(ty.dtype))
        tensor.forms[form] = expr
        return tensor

    def _constant(self, var: relax.Var, call: relax.Call, follow: Follow) -> _Value:
        """Compute a value that depends only on constants in whichever form is requested."""
        identity = LayoutForm.identity(len(follow.frame))
        if isinstance(call.ty, relax.TupleType) or follow.gives(identity)[0] != identity:
            out = self._emit(follow, identity, var.name)
            return self._outputs(var, call, follow, identity, out)
        tensor = Tensor(var.name, static_shape(call.ty) or (), str(call.ty.dtype))

        def make(form: LayoutForm) -> relax.Expr | None:
            if follow.needs(form) is None or follow.gives(form)[0] != form:
                return None
            return self._emit(follow, form, var.name)

        tensor.make = make
        return tensor

    def _original(self, expr: relax.Expr) -> relax.Expr:
        """Return ``expr`` with all operands in their original form."""
        if isinstance(expr, relax.Var):
            value = self._known.get(expr)
            if isinstance(value, Tensor):
                return self.forms.original(value)
            if isinstance(value, tuple):
                return relax.Tuple([self.forms.original(field) for field in value])
            return expr if value is None else value.expr
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._original(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._original(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call):
            args = [self._original(arg) for arg in expr.args]
            return relax.Call(expr.op, args, expr.attrs, expr.ty_args)
        if isinstance(expr, (relax.If, relax.SeqExpr)):
            found = {var: self._original(var) for var in relax.analysis.free_vars(expr)}
            return _Substitute(found).visit_expr(expr)
        return expr


@mutator
class _Substitute(PyExprMutator):
    def __init__(self, found: dict[relax.Var, relax.Expr]) -> None:
        super().__init__()
        self._found = found

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        return self._found.get(op, op)
