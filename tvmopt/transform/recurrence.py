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
        return self._kernel_call(recurrence, _form(recurrence, self._target), named)

    def _kernel_call(
        self, r: Recurrence, form: _Form, operands: dict[str, relax.Expr]
    ) -> relax.Expr:
        weight = self._padded(operands.pop("weight"), 2, form.units)
        arguments = {
            name: self._padded_state(name, value, form.units) for name, value in operands.items()
        }
        for n, gates in enumerate(r.phases):
            some = weight
            if len(r.phases) > 1:
                part = relax.op.strided_slice(weight, [1], [gates[0]], [gates[-1] + 1])
                some = self.builder_.emit(part)
            some = form.pack(some)
            if r.weight_dtype != "float32":
                some = relax.op.astype(some, r.weight_dtype)
            arguments[f"weight{n}"] = self.builder_.emit(some)
        kernel = form.kernel.with_attr(_KERNEL_ATTR, r.cell)
        function = self.builder_.add_func(kernel, f"{r.cell.lower()}_layer")
        types = [relax.TensorType(shape, dtype) for _, shape, dtype in form.outputs]
        made = self.builder_.emit(
            relax.op.call_tir(function, [arguments[name] for name, _, _ in form.inputs], types)
        )
        fields = [self._unpadded(relax.TupleGetItem(made, n), r.hidden) for n in range(r.outputs)]
        return relax.Tuple(fields)

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
        pack: Returns a phase's weight, (directions, gates, units, hidden), in the kernel's order.
    """

    kernel: tirx.PrimFunc
    units: int
    inputs: list[Parameter]
    outputs: list[Parameter]
    pack: Callable[[relax.Expr], relax.Expr]


def _form(recurrence: Recurrence, target: tvm.target.Target | None) -> _Form:
    """Return the kernel for a target."""
    r = recurrence
    if _is_gpu(target):
        return _Form(
            on_gpu.recurrence_kernel(r),
            r.hidden,
            kernel_inputs(r, r.hidden, on_gpu.weight_shapes(r)),
            [*kernel_outputs(r, r.hidden), *on_gpu.scratch(r)],
            lambda weight: relax.op.permute_dims(weight, [0, 2, 1, 3]),
        )
    tiling = _tiling(r, target)
    units = on_cpu.padded_units(r, tiling)

    def pack(weight: relax.Expr) -> relax.Expr:
        tiles = [units // tiling.lanes, tiling.lanes]
        shape = [r.directions, int(weight.ty.shape[1]), *tiles, r.hidden]
        return relax.op.permute_dims(relax.op.reshape(weight, shape), [0, 2, 4, 1, 3])

    return _Form(
        on_cpu.recurrence_kernel(r, tiling),
        units,
        kernel_inputs(r, units, on_cpu.weight_shapes(r, tiling)),
        kernel_outputs(r, units),
        pack,
    )


def _is_gpu(target: tvm.target.Target | None) -> bool:
    return target is not None and target.kind.name == CudaArch.kind


def _tiling(recurrence: Recurrence, target: tvm.target.Target | None) -> RecurrenceTiling:
    """Return how the kernel is laid out for a CPU; without a target, for a vector of 16 bytes."""
    if target is None:
        return RecurrenceTiling(4, 8, 1)
    if target.kind.name != CpuArch.kind:
        raise UnsupportedOperatorError(
            f"{recurrence.cell} must be compiled for a CPU, but the target is {target.kind.name}"
        )
    mtriple = str(target.attrs.get("mtriple", ""))
    isa = {"arm64": "aarch64"}.get(first := mtriple.split("-")[0], first) or host.isa()
    features = llvm_features(
        str(target.attrs["mcpu"]), tuple(map(str, target.attrs.get("mattr", ()))), mtriple
    )
    bits, registers = vector_registers(isa, required_cpu_flags(isa, features))
    r = recurrence
    products = r.directions * r.batch * r.gates * r.hidden**2 // len(r.phases)
    threads = max(1, min(int(target.attrs.get("num-cores", 1)), products // _PRODUCTS_PER_THREAD))
    return RecurrenceTiling(min(16, max(4, bits // 32)), registers // 2, threads, isa == "x86_64")
