"""Layout rule of LRN, the call of :mod:`tvmopt.transform.response_norm`."""

from __future__ import annotations

import dataclasses

from tvm import relax

from tvmopt.transform.layout.form import LayoutForm
from tvmopt.transform.layout.rules.base import Follow, Operands, one_input
from tvmopt.transform.response_norm import response_norm_call, response_norm_of


def response_norm(call: relax.Call, operands: Operands) -> Follow | None:
    """Normalise along an axis that is not blocked; a converted tensor gets it last.

    A CPU then has a kernel (:mod:`tvmopt.transform.lower_response_norm`).
    """
    norm = response_norm_of(call)
    data = None if norm is None else operands.tensor(call.args[1].fields[0])
    if norm is None or data is None:
        return None

    def emit(form: LayoutForm, expr: relax.Expr) -> relax.Expr:
        return response_norm_call(dataclasses.replace(norm, axis=form.dim(norm.axis)), expr)

    rank = len(data.shape)
    last = LayoutForm((*(axis for axis in range(rank) if axis != norm.axis), norm.axis))
    converted = any(not form.is_identity for form in data.available())

    def possible(form: LayoutForm) -> bool:
        if form.block(norm.axis) is not None:
            return False
        if form.order[-1] == norm.axis:
            return not form.blocks
        return form.is_identity and not converted

    return one_input(data, possible, emit, also=(last,) if converted else ())
