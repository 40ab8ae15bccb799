"""Recurrent layers: a call that stands for the serial part, and its kernel for a target.

before -> after::

    call_dps_packed('tvmopt.recurrence {"cell": "LSTM", ...}', (gates, weight, ...))
    ->
    call_tir(lstm, (gates, packed weight, ...))

``gates`` is the input's product over all steps, a matmul like any other. The weight is packed by
Relax operators, which constant folding replaces by their result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt import host
from tvmopt.device.cpu import CpuArch
from tvmopt.device.cuda import CudaArch
from tvmopt.device.features import required_cpu_flags, vector_registers
from tvmopt.device.llvm import llvm_features
from tvmopt.errors import UnsupportedOperatorError
from tvmopt.kernels.cpu import recurrence as on_cpu
from tvmopt.kernels.cpu.finish import finish_function
from tvmopt.kernels.cpu.recurrence import RecurrenceTiling
from tvmopt.kernels.cuda import recurrence as on_gpu
from tvmopt.kernels.recurrence import Recurrence
from tvmopt.kernels.recurrence.operands import Parameter, kernel_inputs, kernel_outputs
from tvmopt.kernels.scheduled import mark
from tvmopt.transform.anchors import anchors

_PREFIX = "tvmopt.recurrence "
# Attribute of a generated kernel: its cell.
_KERNEL_ATTR = "tvmopt.recurrence"
# Products between two barriers that pay for one more thread.
_PRODUCTS_PER_THREAD = 20_000


def recurrence_call(recurrence: Recurrence, operands: Sequence[relax.Expr]) -> relax.Call:
    """Return the layer's outputs: Y, Y_h and, for an LSTM, Y_c.

    Args:
        recurrence: The layer.
        operands: Those that ``recurrence.operands`` names: ``gates`` (steps, batch, directions,
            gates, hidden), ``weight`` (directions, gates, hidden, hidden), ``bias`` (directions,
            hidden), ``peepholes`` (directions, 3, hidden), ``lengths`` (batch), and the states
            (directions, batch, hidden).
    """
    r = recurrence
    state = relax.TensorType((r.directions, r.batch, r.hidden), "float32")
    y = relax.TensorType((r.steps, r.directions, r.batch, r.hidden), "float32")
    outputs = [y, *[state] * (r.outputs - 1)]
    return relax.op.call_dps_packed(_PREFIX + r.to_json(), relax.Tuple(operands), outputs)


def narrow_recurrences(mod: tvm.IRModule, dtype: str, skip_layers: Collection[int]) -> tvm.IRModule:
    """Return ``mod`` with the recurrent weights of its layers in ``dtype``.

    Args:
        mod: A module with layers.
        dtype: ``"bfloat16"`` or ``"float16"``: the kernels widen it as they read it.
        skip_layers: Indices of layers that keep their dtype.
    """
    layers = {anchor.var: anchor.index for anchor in anchors(mod)}
    rewrite = _Narrow(mod, dtype, layers, skip_layers)
    main = mod.get_global_var("main")
    rewrite.builder_.update_func(main, rewrite.visit_expr(mod["main"]))
    return rewrite.builder_.get()


def _recurrence(call: relax.Call) -> Recurrence | None:
    """Return the layer that a call stands for; None for other calls."""
    if getattr(call.op, "name", "") != "relax.call_dps_packed":
        return None
    symbol = str(call.args[0].global_symbol)
    if not symbol.startswith(_PREFIX):
        return None
    return Recurrence.from_json(symbol.removeprefix(_PREFIX))


@mutator
class _Narrow(PyExprMutator):
    def __init__(
        self,
        mod: tvm.IRModule,
        dtype: str,
        layers: Mapping[relax.Var, int],
        skipped: Collection[int],
    ) -> None:
        super().__init__(mod)
        self._dtype, self._skipped, self._layers = dtype, skipped, layers
        self._made = {
            binding.var: binding.value
            for block in mod["main"].body.blocks
            for binding in block.bindings
            if isinstance(binding, relax.VarBinding)
        }

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        recurrence = _recurrence(op)
        if recurrence is None or self._layer(op.args[1].fields[0]) in self._skipped:
            return call
        narrow = dataclasses.replace(recurrence, weight_dtype=self._dtype)
        return recurrence_call(narrow, list(call.args[1].fields))

    def _layer(self, value: relax.Expr) -> int | None:
        """Return the layer whose matmul makes the gates ``value``."""
        while isinstance(value, relax.Var) and value not in self._layers:
            made = self._made.get(value)
            value = made.args[0] if isinstance(made, relax.Call) and made.args else None
        return self._layers.get(value)


@tvm.transform.module_pass(opt_level=0, name="LowerRecurrences")
class LowerRecurrences:
    """Replace every recurrent layer by a call of its kernel.

    Args:
        target: Target to compile for.
    """

    def __init__(self, target: tvm.target.Target | None) -> None:
        self._target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        rewrite = _Lower(mod, self._target)
        main = mod.get_global_var("main")
        rewrite.builder_.update_func(main, rewrite.visit_expr(mod["main"]))
        return rewrite.builder_.get()


@tvm.transform.module_pass(opt_level=0, name="FinishRecurrences")
class FinishRecurrences:
    """Finish the kernels of :class:`LowerRecurrences` for their device, after all Relax passes.

    TVM's Relax passes do not know the ``Let`` that a CPU's vector math emits.

    Args:
        target: Target to compile for.
    """

    def __init__(self, target: tvm.target.Target | None) -> None:
        self._finish = mark if _is_gpu(target) else finish_function

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to all generated kernels."""
        kernels = {
            var: self._finish(func)
            for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and _KERNEL_ATTR in (func.attrs or {})
        }
        out = mod.clone()
        out.update(tvm.IRModule(kernels))
        return out


@mutator
class _Lower(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target | None) -> None:
        super().__init__(mod)
        self._target = target

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        recurrence = _recurrence(call)
        if recurrence is None:
            return call
        named = dict(zip(recurrence.operands, call.args[1].fields, strict=True))
        product = self._input_product(recurrence, named["gates"])
        form = _form(recurrence, self._target, 0 if product is None else product.features)
        if form.features and product is not None:
            del named["gates"]
        else:
            product = None
        return self._kernel_call(recurrence, form, named, product)

    def _input_product(self, r: Recurrence, gates: relax.Expr) -> _InputProduct | None:
        """Return the operands of the matmul that makes ``gates``, if its weight is constant."""
        shaped = self._call(gates, "relax.reshape")
        if shaped is None:
            return None
        product, bias = shaped.args[0], None
        added = self._call(product, "relax.add")
        if added is not None:
            product, bias = added.args
        matmul = self._call(product, "relax.matmul")
        if matmul is None or not self._constant(matmul.args[1]):
            return None
        if bias is not None and not self._constant(bias):
            return None
        x, weight = matmul.args
        shapes = [[int(n) for n in each.ty.shape] for each in (x, weight)]
        columns = r.directions * r.gates * r.hidden
        dtypes = {str(each.ty.dtype) for each in (x, weight, matmul)}
        if shapes != [[r.steps * r.batch, shapes[0][-1]], [shapes[0][-1], columns]] or dtypes != {
            "float32"
        }:
            return None
        if bias is None:
            bias = relax.op.zeros([columns], "float32")
        return _InputProduct(x, weight, bias, shapes[0][-1])

    def _call(self, value: relax.Expr, name: str) -> relax.Call | None:
        """Return the call of an operator that is bound to ``value``."""
        made = self.builder_.lookup_binding(value) if isinstance(value, relax.Var) else None
        if isinstance(made, relax.Call) and getattr(made.op, "name", "") == name:
            return made
        return None

    def _constant(self, value: relax.Expr) -> bool:
        """Return whether constants alone make a value."""
        if isinstance(value, relax.Var):
            made = self.builder_.lookup_binding(value)
            return isinstance(made, relax.Call) and all(map(self._constant, made.args))
        if isinstance(value, relax.Tuple):
            return all(map(self._constant, value.fields))
        return isinstance(value, GenericConst | relax.ShapeExpr | tirx.IntImm)

    def _kernel_call(
        self,
        r: Recurrence,
        form: _Form,
        operands: dict[str, relax.Expr],
        product: _InputProduct | None,
    ) -> relax.Expr:
        arguments = {
            name: self._padded_state(name, value, form.units)
            for name, value in operands.items()
            if name != "weight"
        }
        weight = self._padded(operands["weight"], 2, form.units)
        for n, gates in enumerate(r.phases):
            arguments[f"weight{n}"] = self._packed(r, form, weight, gates)
        if product is not None:
            split = [r.directions, r.gates, r.hidden]
            arguments["x"] = product.x
            bias = self.builder_.emit(relax.op.reshape(product.bias, split))
            arguments["input_bias"] = self._padded(bias, 2, form.units)
            columns = self.builder_.emit(relax.op.permute_dims(product.weight, [1, 0]))
            split.append(product.features)
            weight = self._padded(
                self.builder_.emit(relax.op.reshape(columns, split)), 2, form.units
            )
            for n, (_, gates) in enumerate(on_cpu.input_groups(r)):
                arguments[f"input_weight{n}"] = self._packed(r, form, weight, gates)
        kernel = form.kernel.with_attr(_KERNEL_ATTR, r.cell)
        function = self.builder_.add_func(kernel, f"{r.cell.lower()}_layer")
        types = [relax.TensorType(shape, dtype) for _, shape, dtype in form.outputs]
        made = self.builder_.emit(
            relax.op.call_tir(function, [arguments[name] for name, _, _ in form.inputs], types)
        )
        fields = [self._unpadded(relax.TupleGetItem(made, n), r.hidden) for n in range(r.outputs)]
        return relax.Tuple(fields)

    def _packed(
        self, r: Recurrence, form: _Form, weight: relax.Expr, gates: Sequence[int]
    ) -> relax.Expr:
        """Return some gates of a weight, in the kernel's order."""
        if len(gates) < r.gates:
            part = relax.op.strided_slice(weight, [1], [gates[0]], [gates[-1] + 1])
            weight = self.builder_.emit(part)
        packed = form.pack(weight)
        if r.weight_dtype != "float32":
            packed = relax.op.astype(packed, r.weight_dtype)
        return self.builder_.emit(packed)

    def _padded_state(self, name: str, value: relax.Expr, units: int) -> relax.Expr:
        return value if name == "lengths" else self._padded(value, len(value.ty.shape) - 1, units)

    def _padded(self, value: relax.Expr, axis: int, units: int) -> relax.Expr:
        """Return ``value`` with zeros behind its units, up to ``units``."""
        extents = [int(extent) for extent in value.ty.shape]
        more = units - extents[axis]
        if not more:
            return value
        zeros = relax.op.zeros([*extents[:axis], more, *extents[axis + 1 :]], "float32")
        return self.builder_.emit(relax.op.concat([value, zeros], axis))

    def _unpadded(self, value: relax.Expr, hidden: int) -> relax.Expr:
        value = self.builder_.emit(value)
        axis = len(value.ty.shape) - 1
        if int(value.ty.shape[axis]) == hidden:
            return value
        return self.builder_.emit(relax.op.strided_slice(value, [axis], [0], [hidden]))


@dataclasses.dataclass(frozen=True)
class _Form:
    """A kernel, and what it expects.

    Attributes:
        kernel: The function.
        units: Hidden units, rounded up as the kernel needs them.
        inputs: Its inputs.
        outputs: The layer's outputs, then other buffers that the kernel writes.
        pack: Returns a phase's weight, (directions, gates, units, values that a unit's weight
            multiplies), in the kernel's order.
        features: Features of the input, if the kernel multiplies the input as well.
    """

    kernel: tirx.PrimFunc
    units: int
    inputs: list[Parameter]
    outputs: list[Parameter]
    pack: Callable[[relax.Expr], relax.Expr]
    features: int = 0


@dataclasses.dataclass(frozen=True)
class _InputProduct:
    """Operands of the matmul of a layer's input.

    Attributes:
        x: (steps x batch, features).
        weight: (features, directions x gates x hidden).
        bias: (directions x gates x hidden,).
        features: Features of the input.
    """

    x: relax.Expr
    weight: relax.Expr
    bias: relax.Expr
    features: int


def _form(recurrence: Recurrence, target: tvm.target.Target | None, features: int) -> _Form:
    """Return the kernel for a target.

    Args:
        recurrence: The layer.
        target: Target to compile for.
        features: Features of the input, if the kernel may multiply the input as well; else 0.
    """
    r = recurrence
    if _is_gpu(target):
        return _Form(
            on_gpu.recurrence_kernel(r),
            r.hidden,
            kernel_inputs(r, r.hidden, on_gpu.weight_shapes(r)),
            [*kernel_outputs(r, r.hidden), *on_gpu.scratch(r)],
            lambda weight: relax.op.permute_dims(weight, [0, 2, 1, 3]),
        )
    if not on_cpu.block_steps(r, _tiling(r, target)):
        features = 0
    tiling = _tiling(r, target, features)
    units = on_cpu.padded_units(r, tiling)

    def pack(weight: relax.Expr) -> relax.Expr:
        tiles = [units // tiling.lanes, tiling.lanes]
        _, gates, _, values = map(int, weight.ty.shape)
        shape = [r.directions, gates, *tiles, values]
        return relax.op.permute_dims(relax.op.reshape(weight, shape), [0, 2, 4, 1, 3])

    return _Form(
        on_cpu.recurrence_kernel(r, tiling, features),
        units,
        on_cpu.parameters_in(r, tiling, features),
        kernel_outputs(r, units),
        pack,
        features,
    )


def _is_gpu(target: tvm.target.Target | None) -> bool:
    return target is not None and target.kind.name == CudaArch.kind


def _tiling(
    recurrence: Recurrence, target: tvm.target.Target | None, features: int = 0
) -> RecurrenceTiling:
    """Return how the kernel is laid out for a CPU; without a target, for a vector of 16 bytes."""
    if target is None:
        return RecurrenceTiling(4, 16, 1)
    if target.kind.name != CpuArch.kind:
        raise UnsupportedOperatorError(
            f"{recurrence.cell} must be compiled for a CPU, but the target is {target.kind.name}"
        )
    mtriple = str(target.attrs.get("mtriple", ""))
    isa = {"arm64": "aarch64"}.get(first := mtriple.split("-")[0], first) or host.isa()
    flags = llvm_features(
        str(target.attrs["mcpu"]), tuple(map(str, target.attrs.get("mattr", ()))), mtriple
    )
    bits, registers = vector_registers(isa, required_cpu_flags(isa, flags))
    r = recurrence
    products = r.directions * r.batch * r.gates * r.hidden * (r.hidden + features) // len(r.phases)
    threads = max(1, min(int(target.attrs.get("num-cores", 1)), products // _PRODUCTS_PER_THREAD))
    return RecurrenceTiling(min(16, max(4, bits // 32)), registers, threads, isa == "x86_64")
