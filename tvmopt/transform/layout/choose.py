"""Choose the layout in which each operator runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tvm
from tvm import relax

from tvmopt.transform.layout.form import LayoutForm, change
from tvmopt.transform.layout.layouts import ConvForms
from tvmopt.transform.layout.rules import RULES, Follow
from tvmopt.transform.layout.tensors import Forms, Tensor, static_shape
from tvmopt.transform.layout.views import VIEWS, before


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Layouts that later convolutions request.

    Attributes:
        forms: Requested form of each tensor, where there is one.
        askers: Number of operators that request it.
    """

    forms: dict[relax.Var, LayoutForm]
    askers: dict[relax.Var, int]

    def _ask(self, source: relax.Expr, form: LayoutForm | None) -> None:
        if form is None or not isinstance(source, relax.Var):
            return
        tuples = isinstance(source.ty, relax.TupleType)
        shape = static_shape(source.ty.fields[0] if tuples else source.ty)
        if shape is not None and len(shape) == len(form.order):
            self.forms[source] = form
            self.askers[source] = self.askers.get(source, 0) + 1

    @staticmethod
    def of(calls: dict[relax.Var, relax.Expr], planned: Mapping[relax.Var, ConvForms]) -> Wanted:
        """Propagate requests backwards from ``planned`` convolutions; ``calls`` are in order."""
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
) -> LayoutForm:
    """Return the form that moves the fewest bytes, here and before the requesting convolution.

    On a tie, a tensor that several operators request in the new form is converted now; otherwise
    the result is converted later.

    Args:
        var: Variable bound to the result.
        call: The operator.
        follow: Forms in which the operator can run.
        forms: Existing forms of each tensor, with conversion costs.
        wanted: Requests of later convolutions.
    """
    rank = len(follow.frame)
    identity = LayoutForm.identity(rank)
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


def _bytes_to_move(ty: relax.Type, forms: tuple[LayoutForm, ...], wanted: LayoutForm | None) -> int:
    """Return the bytes of outputs in ``forms`` that still need conversion to ``wanted``."""
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
