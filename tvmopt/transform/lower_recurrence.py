"""Lower recurrent layers to their kernels for a target.

before -> after::

    lv0 = matmul(x, w); lv1 = add(lv0, b); gates = reshape(lv1)
    call_dps_packed('tvmopt.recurrence {"cell": "LSTM", ...}', (gates, weight, ...))
    ->
    call_tir(lstm, (gates, packed weight, ...))              # the matmul stays, or
    call_tir(lstm, (x, packed w, b, packed weight, ...))     # the kernel multiplies the input, too

Weights are packed by Relax operators, which constant folding replaces by their result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.device.cpu import CpuArch
from tvmopt.device.cpu_of_target import cpu_of_target
from tvmopt.device.cuda import CudaArch
from tvmopt.errors import UnsupportedOperatorError
from tvmopt.kernels.cpu import recurrence as on_cpu
from tvmopt.kernels.cpu.intrinsics import DotIntrinsic, find_dot
from tvmopt.kernels.cpu.recurrence import RecurrenceTiling
from tvmopt.kernels.cuda import recurrence as on_gpu
from tvmopt.kernels.recurrence import Recurrence
from tvmopt.kernels.recurrence.operands import Parameter, kernel_inputs, kernel_outputs
from tvmopt.kernels.scheduled import UNFINISHED_ATTR
from tvmopt.transform.recurrence import recurrence_of

# Multiply-adds between two barriers that pay for one more thread.
_PRODUCTS_PER_THREAD = 20_000


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


@mutator
class _Lower(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target | None) -> None:
        super().__init__(mod)
        self._target = target

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        recurrence = recurrence_of(call)
        if recurrence is None:
            return call
        named = dict(zip(recurrence.operands, call.args[1].fields, strict=True))
        if recurrence.weight_dtype == "int8" and _dot(recurrence, self._target) is None:
            recurrence = self._widened(recurrence, named)
        product = self._input_product(recurrence, named["gates"])
        form = _form(recurrence, self._target, 0 if product is None else product.features)
        return self._kernel_call(recurrence, form, named, product if form.features else None)

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
        if {str(each.ty.dtype) for each in (x, weight, matmul)} != {"float32"}:
            return None
        if [len(each.ty.shape) for each in (x, weight)] != [2, 2]:
            return None
        features, columns = map(int, weight.ty.shape)
        if bias is None:
            bias = relax.op.zeros([columns], "float32")
        return _InputProduct(x, weight, bias, features)

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
        weight = self._padded(operands.pop("weight"), 2, form.units)
        if "weight_offset" in {name for name, _, _ in form.inputs}:
            operands["weight_offset"] = self._offset(weight, form.zero_point)
        if product is None:
            arguments = {}
        else:
            del operands["gates"]
            arguments = self._input_arguments(r, form, product)
        for name, value in operands.items():
            arguments[name] = self._padded_state(name, value, form.units)
        for n, gates in enumerate(r.phases):
            packed = self._packed(r, form, weight, gates)
            if str(packed.ty.dtype) != r.weight_dtype:
                packed = self.builder_.emit(relax.op.astype(packed, r.weight_dtype))
            arguments[f"weight{n}"] = packed
        kernel = form.kernel.with_attr(UNFINISHED_ATTR, True)
        function = self.builder_.add_func(kernel, f"{r.cell.lower()}_layer")
        types = [relax.TensorType(shape, dtype) for _, shape, dtype in form.outputs]
        made = self.builder_.emit(
            relax.op.call_tir(function, [arguments[name] for name, _, _ in form.inputs], types)
        )
        fields = [self._unpadded(relax.TupleGetItem(made, n), r.hidden) for n in range(r.outputs)]
        return relax.Tuple(fields)

    def _widened(self, r: Recurrence, operands: dict[str, relax.Expr]) -> Recurrence:
        """Replace the int8 weight in ``operands`` by a float32 one; return the layer with it."""
        scale = relax.op.expand_dims(operands.pop("weight_scale"), [-1])
        weight = relax.op.astype(operands["weight"], "float32")
        operands["weight"] = self.builder_.emit(relax.op.multiply(weight, scale))
        return dataclasses.replace(r, weight_dtype="float32", operands=tuple(operands))

    def _offset(self, weight: relax.Expr, zero_point: int) -> relax.Expr:
        """Return what subtracts the zero point's share from the accumulators."""
        sums = relax.op.sum(relax.op.astype(weight, "int32"), [-1])
        times = relax.op.multiply(sums, relax.const(-zero_point, "int32"))
        return self.builder_.emit(times)

    def _input_arguments(
        self, r: Recurrence, form: _Form, product: _InputProduct
    ) -> dict[str, relax.Expr]:
        """Return the arguments of a kernel that multiplies the input."""
        emit, split = self.builder_.emit, [r.directions, r.gates, r.hidden]
        bias = emit(relax.op.reshape(product.bias, split))
        rows = emit(relax.op.permute_dims(product.weight, [1, 0]))
        weight = emit(relax.op.reshape(rows, [*split, product.features]))
        weight = self._padded(weight, 2, form.units)
        packed = {
            f"input_weight{n}": self._packed(r, form, weight, gates)
            for n, (_, gates) in enumerate(on_cpu.input_groups(r))
        }
        return {"x": product.x, "input_bias": self._padded(bias, 2, form.units), **packed}

    def _packed(
        self, r: Recurrence, form: _Form, weight: relax.Expr, gates: Sequence[int]
    ) -> relax.Expr:
        """Return some gates of a weight, in the kernel's order."""
        if len(gates) < r.gates:
            part = relax.op.strided_slice(weight, [1], [gates[0]], [gates[-1] + 1])
            weight = self.builder_.emit(part)
        return self.builder_.emit(form.pack(weight))

    def _padded_state(self, name: str, value: relax.Expr, units: int) -> relax.Expr:
        return value if name == "lengths" else self._padded(value, len(value.ty.shape) - 1, units)

    def _padded(self, value: relax.Expr, axis: int, units: int) -> relax.Expr:
        """Return ``value`` with zeros behind its units, up to ``units``."""
        extents = [int(extent) for extent in value.ty.shape]
        more = units - extents[axis]
        if not more:
            return value
        shape = [*extents[:axis], more, *extents[axis + 1 :]]
        zeros = relax.op.zeros(shape, str(value.ty.dtype))
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
        zero_point: Integer that stands for a state of 0, of a kernel with an int8 weight.
    """

    kernel: tirx.PrimFunc
    units: int
    inputs: list[Parameter]
    outputs: list[Parameter]
    pack: Callable[[relax.Expr], relax.Expr]
    features: int = 0
    zero_point: int = 0


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
        if tiling.dot is None:
            shape = [r.directions, gates, *tiles, values]
            return relax.op.permute_dims(relax.op.reshape(weight, shape), [0, 2, 4, 1, 3])
        depth = tiling.dot.depth
        words = -(-values // depth)
        behind = relax.const(np.zeros([r.directions, gates, units, words * depth - values], "int8"))
        whole = relax.op.concat([weight, behind], 3)
        shape = [r.directions, gates, *tiles, words, depth]
        return relax.op.permute_dims(relax.op.reshape(whole, shape), [0, 2, 4, 1, 3, 5])

    return _Form(
        on_cpu.recurrence_kernel(r, tiling, features),
        units,
        on_cpu.parameters_in(r, tiling, features),
        kernel_outputs(r, units),
        pack,
        features,
        0 if tiling.dot is None else on_cpu.zero_point(tiling.dot),
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
            "; choose a CPU as target"
        )
    cpu = cpu_of_target(target)
    r = recurrence
    products = r.directions * r.batch * r.gates * r.hidden * (r.hidden + features) // len(r.phases)
    threads = max(1, min(cpu.cores, products // _PRODUCTS_PER_THREAD))
    return RecurrenceTiling(
        lanes=min(16, max(4, cpu.simd_bits // 32)),
        registers=cpu.vector_registers,
        threads=threads,
        spins=cpu.isa == "x86_64",
        dot=_dot(r, target),
    )


def _dot(recurrence: Recurrence, target: tvm.target.Target | None) -> DotIntrinsic | None:
    """Return the dot-product instruction for an int8 weight; None without any.

    Where a dot product takes several instructions, the rounded weight is multiplied in float32: a
    step reads each weight once, so preparing it does not pay.
    """
    if recurrence.weight_dtype != "int8" or target is None or target.kind.name != CpuArch.kind:
        return None
    cpu = cpu_of_target(target)
    found = find_dot(cpu, "uint8", "int8") or find_dot(cpu, "int8", "int8")
    if found is None or found.multiplies > 1 or found.lanes != cpu.simd_bits // 32:
        return None
    return found
