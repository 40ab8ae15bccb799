"""Recurrent layers: a call that stands for the serial part of a layer.

It is ``call_dps_packed('tvmopt.recurrence {"cell": "LSTM", ...}', (gates, weight, ...))``, behind a
matmul like any other, whose result is ``gates``: the product of the input over all steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.kernels.recurrence import OPERANDS, Recurrence
from tvmopt.transform.anchors import anchors
from tvmopt.transform.precision.anchor_call import constant_data

_PREFIX = "tvmopt.recurrence "


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
        dtype: ``"bfloat16"`` or ``"float16"``, which the kernels widen as they read it; or
            ``"int8"``, with a scale for each gate and unit, for finite constant weights of layers
            whose state is bounded.
        skip_layers: Indices of layers that keep their dtype.
    """
    layers = {anchor.var: anchor.index for anchor in anchors(mod)}
    rewrite = _Narrow(mod, dtype, layers, skip_layers)
    main = mod.get_global_var("main")
    rewrite.builder_.update_func(main, rewrite.visit_expr(mod["main"]))
    return rewrite.builder_.get()


def quantized(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a recurrent weight in int8, and its scales.

    Args:
        weight: (directions, gates, hidden, hidden), float32.

    Returns:
        The weight, and the scales (directions, gates, hidden): one for each row.
    """
    scale = np.abs(weight).max(axis=-1) / np.float32(127)
    scale = np.where(scale < np.finfo(np.float32).tiny, np.float32(1), scale)
    return np.rint(weight / scale[..., None]).astype(np.int8), scale


def recurrence_of(call: relax.Call) -> Recurrence | None:
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
        recurrence = recurrence_of(op)
        if recurrence is None or self._layer(op.args[1].fields[0]) in self._skipped:
            return call
        operands = dict(zip(recurrence.operands, call.args[1].fields, strict=True))
        if self._dtype == "int8":
            weight = self._constant(operands["weight"])
            if weight is None or not np.isfinite(weight).all() or not recurrence.bounded:
                return call
            operands["weight"], operands["weight_scale"] = map(relax.const, quantized(weight))
        narrow = dataclasses.replace(
            recurrence,
            weight_dtype=self._dtype,
            operands=tuple(name for name in OPERANDS if name in operands),
        )
        return recurrence_call(narrow, [operands[name] for name in narrow.operands])

    def _constant(self, value: relax.Expr) -> np.ndarray | None:
        if isinstance(value, relax.Var):
            value = self._made.get(value)
        data = constant_data(value)
        return None if data is None else data.numpy()

    def _layer(self, value: relax.Expr) -> int | None:
        """Return the layer whose matmul makes the gates ``value``."""
        while isinstance(value, relax.Var) and value not in self._layers:
            made = self._made.get(value)
            value = made.args[0] if isinstance(made, relax.Call) and made.args else None
        return self._layers.get(value)
