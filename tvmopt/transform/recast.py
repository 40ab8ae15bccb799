"""Change the dtype of layers without scaling, for benchmarks: how fast would int8 be?

before -> after, ``recast(mod, "int8", "int32")``::

    y = conv2d(x, w)        x' = astype(x, int8)
                            y' = conv2d(x', w', out_dtype=int32)      w' = int8(w), a constant
                            y = astype(y', float32)

The speed is that of the dtype. The results are not the model's, because nothing is scaled. A cast
to integers truncates (0.7 becomes 0). Weights saturate; for activations out of range, the result
depends on the target. For accuracy, use a quantized model or
:func:`tvmopt.transform.precision.to_precision`.

Source: ``recast`` of apache/tvm pull request 6748, for Relay.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvmopt.device.dtypes import BYTE_INTEGERS, HALF_FLOATS
from tvmopt.errors import ConfigError
from tvmopt.skip_layers import SkipLayers, SkipLayersLike
from tvmopt.transform.anchors import anchors
from tvmopt.transform.bound_calls import BoundCallMutator
from tvmopt.transform.count_layers import anchor_names
from tvmopt.transform.precision.anchor_call import TYPED_ANCHORS, constant_data, with_operands
from tvmopt.transform.precision.casting import cast_constant

DTYPES = ("int4", *BYTE_INTEGERS, *HALF_FLOATS)
OUT_DTYPES = ("int4", *BYTE_INTEGERS, "int16", "int32", *HALF_FLOATS, "float32")


def recast(
    mod: tvm.IRModule,
    dtype: str,
    out_dtype: str,
    ops: str | Iterable[str] | None = None,
    skip_layers: SkipLayersLike = None,
) -> tvm.IRModule:
    """Change the operand and result dtypes of layers in any layout.

    Args:
        mod: A module of Relax operators.
        dtype: dtype of data and weights, one of :data:`DTYPES`. An int4 layer can be converted,
            printed and saved, but TVM cannot compile it for a CPU.
        out_dtype: dtype of accumulator and result, one of :data:`OUT_DTYPES`; the result is cast
            back to its original dtype.
        ops: Anchor operators such as ``["nn.conv2d"]``; by default all convolutions and matmuls.
        skip_layers: Layers that do not change.

    Returns:
        The module; its layers keep their order, indices and attributes.

    Raises:
        ConfigError: When a dtype is not supported, an operator is not an anchor operator or has no
            output dtype, or a skip pattern matches no layer.
    """
    _check("dtype", dtype, DTYPES)
    _check("out_dtype", out_dtype, OUT_DTYPES)
    wanted = _typed_ops(ops)
    found = anchors(mod)
    skipped = SkipLayers.parse(skip_layers).resolve(found)
    chosen = {a.var for a in found if a.op in wanted and a.index not in skipped}
    if not chosen:
        return mod
    change = _Recast(mod, dtype, out_dtype, chosen)
    var = mod.get_global_var("main")
    change.builder_.update_func(var, change.visit_expr(mod[var]))
    return change.builder_.get()


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, but got {value!r}")


def _typed_ops(ops: str | Iterable[str] | None) -> frozenset[str]:
    if ops is None:
        return frozenset(TYPED_ANCHORS)
    names = anchor_names(ops)
    untyped = sorted(names - set(TYPED_ANCHORS))
    if untyped:
        raise ConfigError(
            f"ops must have an output type of their own ({', '.join(TYPED_ANCHORS)}), "
            f"but got {untyped[0]!r}; leave it out"
        )
    return names


@mutator
class _Recast(BoundCallMutator):
    def __init__(
        self, mod: tvm.IRModule, dtype: str, out_dtype: str, chosen: set[relax.Var]
    ) -> None:
        super().__init__(mod)
        self._dtype = dtype
        self._out_dtype = out_dtype
        self._chosen = chosen

    def replacement(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        if var not in self._chosen:
            return None
        data, weight = (self._cast(self.visit_expr(arg)) for arg in call.args[:2])
        result = with_operands(call, data, weight, self._out_dtype)
        before = str(call.ty.dtype)
        if before == self._out_dtype:
            return result
        return relax.op.astype(self.builder_.emit(result), before)

    def _cast(self, arg: relax.Expr) -> relax.Expr:
        if str(arg.ty.dtype) == self._dtype:
            return arg
        data = constant_data(arg)
        folded = cast_constant(data.numpy(), self._dtype) if data is not None else None
        if folded is not None:
            return folded
        return self.builder_.emit(relax.op.astype(arg, self._dtype))
