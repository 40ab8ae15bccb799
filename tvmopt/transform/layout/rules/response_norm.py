"""Layout rule of LRN, the call of :mod:`tvmopt.transform.response_norm`."""

from __future__ import annotations

import dataclasses

from tvm import relax

from tvmopt.transform.layout.form import LayoutForm
from tvmopt.transform.layout.rules.base import Follow, Operands, one_input
from tvmopt.transform.response_norm import response_norm_call, response_norm_of


def response_norm(call: relax.Call, operands: Operands) -> Follow | None:
    """Normalise along an axis that is not blocked."""
    norm = response_norm_of(call)
    data = None if norm is None else operands.tensor(call.args[1].fields[0])
    if norm is None or data is None:
        return None

    def emit(form: LayoutForm, expr: relax.Expr) -> relax.Expr:
        return response_norm_call(dataclasses.replace(norm, axis=form.dim(norm.axis)), expr)

    return one_input(data, lambda form: form.block(norm.axis) is None, emit)
