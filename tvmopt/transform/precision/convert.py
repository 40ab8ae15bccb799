"""Mixed precision pass: layers in a 16-bit float, float32 where accuracy needs it.

before -> after, for two convolutions::

    a = conv2d(x, w0)                  x' = astype(x, float16)
    b = relu(add(a, bias))             a = conv2d(x', w0', out_dtype=float32)
    c = conv2d(b, w1)                  b = relu(add(a, bias))
                                       b' = astype(b, float16)
                                       c = conv2d(b', w1', out_dtype=float32)

Every variable stays float32, and stored variables get a 16-bit twin. Converted layers, carriers and
register operators read the twins; unused variables become dead code. :mod:`.rules` defines the
roles of operators. :mod:`.fusion` predicts which values are stored; values in registers are never
rounded. :mod:`.plan` decides which values get a twin.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.errors import ConfigError
from tvmopt.skip_layers import SkipLayers, SkipLayersLike
from tvmopt.transform.anchors import Anchor, anchors

from .anchor_call import TYPED_ANCHORS, constant_data, operand_dtypes, with_operands
from .casting import cast_array, largest
from .fusion import dataflow
from .plan import FLOAT, Step, plan_twins
from .rounding import round_keeping_sums
from .rules import Role, check_keep_float32, op_name


@dataclasses.dataclass(frozen=True)
class PrecisionResult:
    """Result of :func:`to_precision`.

    Attributes:
        mod: The module; dtypes of inputs and outputs do not change.
        skipped: Reason for each layer that was not converted, by index.
    """

    mod: tvm.IRModule
    skipped: dict[int, str]


def to_precision(
    mod: tvm.IRModule,
    dtype: str,
    skip_layers: SkipLayersLike = None,
    keep_float32: Iterable[str] = (),
    narrow_norms: bool = False,
) -> PrecisionResult:
    """Convert layers to read ``dtype`` and accumulate in float32.

    Args:
        mod: A simplified module, weights bound.
        dtype: A 16-bit float, one of ``HALF_FLOATS``.
        skip_layers: Layers that stay float32.
        keep_float32: Additional sensitive operators, ``("sigmoid", "nn.max_pool2d")``. They read
            and write float32, and cause no 16-bit storage.
        narrow_norms: Whether a LayerNorm may read 16 bits, such as a residual sum. It computes in
            float32 either way.

    Raises:
        ConfigError: When ``dtype`` is not a 16-bit float, a skip pattern matches no layer, or an
            operator of ``keep_float32`` does not exist.
    """
    if dtype not in HALF_FLOATS:
        raise ConfigError(
            f"dtype must be one of {', '.join(HALF_FLOATS)}, but got {dtype!r}; "
            "for whole numbers use recast or a quantised model"
        )
    kept = check_keep_float32(keep_float32)
    found = anchors(mod)
    skipped = SkipLayers.parse(skip_layers).resolve(found)
    weights = _Weights(dtype)
    bound = {b.var for block in mod["main"].body.blocks for b in block.bindings}
    converted: set[relax.Var] = set()
    for anchor in found:
        reason = skipped.get(anchor.index) or _why_not(anchor, bound, kept, weights)
        if reason is None:
            converted.add(anchor.var)
        else:
            skipped.setdefault(anchor.index, reason)
    if not converted:
        return PrecisionResult(mod, dict(sorted(skipped.items())))
    plan = plan_twins(dataflow(mod), converted, kept, dtype, narrow_norms)
    convert = _Convert(mod, dtype, plan, weights)
    main = mod["main"]
    changed = convert.visit_expr(main)
    convert.builder_.update_func(mod.get_global_var("main"), changed)
    out = convert.builder_.get()
    if main.attrs:
        out["main"] = out["main"].with_attrs(dict(main.attrs.items()))
    clean = tvm.transform.Sequential(
        [
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(["main"]),
        ]
    )
    return PrecisionResult(clean(out), dict(sorted(skipped.items())))


class _Weights:
    """Constants in the 16-bit dtype; each tensor is cast once."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self._largest = largest(dtype)
        self._cast: dict[int, relax.Expr] = {}
        self._keep: list[tvm.runtime.Tensor] = []

    def magnitude(self, data: tvm.runtime.Tensor) -> float:
        """Return the largest magnitude; infinity when there is a NaN or an infinity."""
        array = data.numpy()
        if array.size == 0:
            return 0.0
        high = float(max(array.max(), -array.min()))
        return math.inf if math.isnan(high) else high

    def overflows(self, data: tvm.runtime.Tensor) -> bool:
        """Return whether a value overflows the 16-bit dtype."""
        return self.magnitude(data) > self._largest

    def cast(self, constant: relax.Expr) -> relax.Expr:
        """Cast a constant, rounding each value to nearest."""
        return self._once(constant, lambda data: cast_array(data, self.dtype))

    def cast_kernels(self, constant: relax.Expr) -> relax.Expr:
        """Cast a convolution's weight, rounding such that each kernel keeps its sum."""
        return self._once(constant, lambda data: round_keeping_sums(data, self.dtype))

    def _once(self, constant: relax.Expr, cast: Callable[[np.ndarray], np.ndarray]) -> relax.Expr:
        key = constant.__hash__()
        if key not in self._cast:
            low = relax.const(np.ascontiguousarray(cast(constant.value.numpy())), self.dtype)
            self._cast[key] = low
            self._keep.append(constant)
        return self._cast[key]


def _has_kernels(call: relax.Call) -> bool:
    """Return whether the weight is a constant (outputs, inputs, *taps) with several taps."""
    layout = str(getattr(call.attrs, "kernel_layout", "") or "")
    data = constant_data(call.args[1])
    return data is not None and layout.startswith("OI") and math.prod(data.shape[2:]) > 1


def _why_not(
    anchor: Anchor, bound: set[relax.Var], kept: frozenset[str], weights: _Weights
) -> str | None:
    if anchor.op in kept:
        return f"keep_float32: {anchor.op}"
    if anchor.op not in TYPED_ANCHORS:
        return f"{anchor.op} has no form that adds up in float32"
    if anchor.var not in bound:
        return "inside a branch of an If"
    types = operand_dtypes(anchor.call)
    if types != (FLOAT, FLOAT) or str(anchor.call.ty.dtype) != FLOAT:
        return f"operands are {types[0] or 'unknown'} and {types[1] or 'unknown'}, not float32"
    for operand in anchor.call.args[:2]:
        data = constant_data(operand)
        if data is not None and weights.overflows(data):
            high = weights.magnitude(data)
            return f"weights up to {high:.3g} overflow {weights.dtype}"
    return None


@mutator
class _Convert(PyExprMutator):
    def __init__(
        self,
        mod: tvm.IRModule,
        dtype: str,
        plan: dict[relax.Var, Step],
        weights: _Weights,
    ) -> None:
        super().__init__(mod)
        self._dtype = dtype
        self._plan = plan
        self._weights = weights
        self._limit = largest(dtype)
        # Variables of the original module -> their 16-bit twins, tensors or tuples of them.
        self._twins: dict[relax.Var, relax.Var] = {}
        # Variables whose twin is stored to memory in their place.
        self._stored_low: set[relax.Var] = set()
        self._var: relax.Var | None = None

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        step = self._plan.get(binding.var)
        if step is None:  # inside a branch
            super().visit_var_binding_(binding)
            return
        self._var = binding.var
        super().visit_var_binding_(binding)
        self._var = None
        if step.twin and binding.var not in self._twins:
            self._twins[binding.var] = self._narrow(self.visit_expr(binding.var), step.huge)
            self._stored_low.add(binding.var)

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        var, self._var = self._var, None
        step = self._plan.get(var) if var is not None else None
        if step is None:
            return super().visit_call_(op)
        if step.converted:
            data, weight = op.args[:2]
            low = self._weights.cast_kernels(weight) if _has_kernels(op) else self._low(weight)
            return with_operands(op, self._low(data), low, FLOAT)
        if step.role is Role.CARRIER and self._runs_low(op, step):
            return self._carry(var, op)
        if step.role in (Role.REGISTER, Role.REDUCTION) and self._reads_twin(op):
            args = [self._wide(arg) for arg in op.args]
            if op_name(op) == "mean":
                return self._mean(op, args[0])
            return relax.Call(op.op, args, op.attrs, op.ty_args)
        return super().visit_call_(op)

    def visit_tuple_getitem_(self, op: relax.TupleGetItem) -> relax.Expr:
        var, self._var = self._var, None
        twin = self._twins.get(op.tuple_value) if var is not None else None
        if twin is None:
            return super().visit_tuple_getitem_(op)
        low = self.builder_.emit(relax.TupleGetItem(twin, op.index))
        self._twins[var] = low
        self._stored_low.add(var)
        return relax.op.astype(low, FLOAT)

    def _carry(self, var: relax.Var, op: relax.Call) -> relax.Expr:
        args = [self._low(arg) for arg in op.args]
        low = self.builder_.emit(relax.Call(op.op, args, op.attrs, op.ty_args))
        self._twins[var] = low
        self._stored_low.add(var)
        if isinstance(low.ty, relax.TupleType):
            return super().visit_call_(op)  # dead: its fields come from the twin
        return relax.op.astype(low, FLOAT)

    def _mean(self, op: relax.Call, data: relax.Expr) -> relax.Expr:
        # TVM fuses an operand's cast into a sum, but not into a legalized mean.
        shape = data.ty.shape
        axes = range(len(shape)) if op.attrs.axis is None else [int(a) for a in op.attrs.axis]
        extents = [shape[axis] for axis in axes]
        if not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
            return relax.Call(op.op, [data], op.attrs, op.ty_args)
        count = math.prod(int(extent) for extent in extents)
        total = self.builder_.emit(relax.op.sum(data, op.attrs.axis, op.attrs.keepdims))
        return relax.op.multiply(total, relax.const(np.float32(1 / count)))

    def _runs_low(self, op: relax.Call, step: Step) -> bool:
        """Return whether all float operands are available in 16 bits, or are needed so anyway."""
        leaves = self._leaves(op.args)
        if any(isinstance(arg.ty, relax.TupleType) for arg in leaves):
            return False  # a tuple variable has no twin
        operands = [arg for arg in leaves if _is_float(arg)]
        variables = [arg for arg in operands if isinstance(arg, relax.Var)]
        constants = [data for data in map(constant_data, operands) if data is not None]
        if any(self._weights.overflows(data) for data in constants):
            return False
        low = [arg in self._stored_low for arg in variables]
        wanted = step.leads and (step.twin or isinstance(op.ty, relax.TupleType))
        return (any(low) and (all(low) or step.leads)) or (not variables and wanted)

    def _reads_twin(self, op: relax.Call) -> bool:
        return any(arg in self._stored_low for arg in self._leaves(op.args))

    def _leaves(self, args: Iterable[relax.Expr]) -> list[relax.Expr]:
        leaves: list[relax.Expr] = []
        for arg in args:
            leaves += self._leaves(arg.fields) if isinstance(arg, relax.Tuple) else [arg]
        return leaves

    def _low(self, arg: relax.Expr) -> relax.Expr:
        """Return ``arg`` in the 16-bit dtype; other dtypes than float32 do not change."""
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._low(field) for field in arg.fields])
        if not _is_float(arg):
            return self.visit_expr(arg)
        if isinstance(arg, relax.Var):
            if arg not in self._twins:
                huge = arg in self._plan and self._plan[arg].huge
                self._twins[arg] = self._narrow(self.visit_expr(arg), huge)
            return self._twins[arg]
        if constant_data(arg) is not None:
            return self._weights.cast(arg)
        return relax.op.astype(self.visit_expr(arg), self._dtype)

    def _wide(self, arg: relax.Expr) -> relax.Expr:
        """Return ``arg`` in float32, loaded from its twin when it has one."""
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._wide(field) for field in arg.fields])
        if isinstance(arg, relax.Var) and arg in self._stored_low:
            return self.builder_.emit(relax.op.astype(self._twins[arg], FLOAT))
        return self.visit_expr(arg)

    def _narrow(self, value: relax.Expr, huge: bool) -> relax.Var:
        if huge:
            # An attention mask of -3.4e38 would overflow to infinity, and then give NaN.
            value = self.builder_.emit(relax.op.clip(value, -self._limit, self._limit))
        return self.builder_.emit(relax.op.astype(value, self._dtype))


def _is_float(arg: relax.Expr) -> bool:
    return str(getattr(arg.ty, "dtype", "")) == FLOAT
