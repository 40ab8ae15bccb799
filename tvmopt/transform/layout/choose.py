"""Which form an operator is computed in, of those that it can be computed in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tvm
from tvm import relax

from tvmopt.transform.layout.form import Form, change
from tvmopt.transform.layout.layouts import ConvForms
from tvmopt.transform.layout.rules import RULES, Follow
from tvmopt.transform.layout.tensors import Forms, Tensor, static_shape
from tvmopt.transform.layout.views import VIEWS, before


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What convolutions further on ask for.

    Attributes:
        forms: The form that each tensor will be asked for, where there is one.
        askers: How many operators ask for it.
    """

    forms: dict[relax.Var, Form]
    askers: dict[relax.Var, int]

    def _ask(self, source: relax.Expr, form: Form | None) -> None:
        if form is None or not isinstance(source, relax.Var):
            return
        tuples = isinstance(source.ty, relax.TupleType)
        shape = static_shape(source.ty.fields[0] if tuples else source.ty)
        if shape is not None and len(shape) == len(form.order):
            self.forms[source] = form
            self.askers[source] = self.askers.get(source, 0) + 1

    @staticmethod
    def of(calls: dict[relax.Var, relax.Expr], planned: Mapping[relax.Var, ConvForms]) -> Wanted:
        """Look back from the ``planned`` convolutions through all ``calls``, which are in order."""
        found = Wanted({}, {})
        for var, value in reversed(calls.items()):
            form = found.forms.get(var)
            if var in planned:
                found._ask(value.args[0], planned[var].data)
            elif form is None:
                continue
            elif isinstance(value, relax.TupleGetItem):
                found._ask(value.tuple_value, form)
            elif isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
                if value.op.name in VIEWS:
                    found._ask(value.args[0], before(value, form))
                elif value.op.name in RULES:
                    for source in _sources(value):
                        found._ask(source, form)
        return found


def choose_form(
    var: relax.Var, call: relax.Call, follow: Follow, forms: Forms, wanted: Wanted
) -> Form:
    """The form that moves the fewest bytes, here and before the convolution that asks for it.

    Between equals, a tensor that several others ask for in the new form moves now, else the result
    moves later.

    Args:
        var: What the result is bound to.
        call: The operator.
        follow: How it can be computed.
        forms: What knows the cost of a form.
        wanted: What is asked for further on.
    """
    rank = len(follow.frame)
    identity = Form.identity(rank)
    goal = wanted.forms.get(var)
    candidates = dict.fromkeys([identity, *follow.also])
    for tensor, _ in follow.needs(identity) or []:
        if len(tensor.shape) == rank:
            candidates.update(dict.fromkeys(tensor.available()))
    if goal is not None and len(goal.order) == rank:
        candidates[goal] = None
    shared = any(wanted.askers.get(source, 0) > 1 for source in _sources(call))
    best, best_cost = identity, None
    for form in candidates:
        needs = follow.needs(form) if form.fits(follow.frame) else None
        if needs is None:
            continue
        costs = [forms.cost(tensor, need) for tensor, need in needs]
        later = _bytes_to_move(call.ty, follow.gives(form), goal)
        steps = 0 if shared and form == goal else sum(s for _, s in costs)
        cost = (sum(b for b, _ in costs) + later, steps, form != (goal or identity))
        if best_cost is None or cost < best_cost:
            best, best_cost = form, cost
    return best


def _sources(call: relax.Call) -> list[relax.Expr]:
    return [
        source
        for arg in call.args
        for source in (arg.fields if isinstance(arg, relax.Tuple) else [arg])
    ]


def _bytes_to_move(ty: relax.Type, forms: tuple[Form, ...], wanted: Form | None) -> int:
    """Bytes of outputs in ``forms`` that have yet to move into the form that is asked for."""
    if wanted is None:
        return 0
    total = 0
    fields = ty.fields if isinstance(ty, relax.TupleType) else [ty]
    for field, form in zip(fields, forms, strict=True):
        shape = static_shape(field)
        if shape is None or len(shape) != len(wanted.order) or not wanted.fits(shape):
            continue
        step = change(shape, form, wanted)
        if step is None or not step.is_free:
            total += Tensor("", shape, str(field.dtype)).bytes
    return total
