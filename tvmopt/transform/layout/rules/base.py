"""How one call takes forms: what every rule returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm.ir import GenericConst

from tvmopt.transform.layout.form import Form, Shape
from tvmopt.transform.layout.tensors import Forms, Tensor, static_shape

Needs = list[tuple[Tensor, Form]]


@dataclasses.dataclass(frozen=True)
class Follow:
    """A call that can be computed in more than one form.

    A form here orders the axes of the *frame*: the input's shape for what changes it (a reduction),
    the output's for what broadcasts.

    Attributes:
        frame: Logical shape of the frame.
        needs: The operands, each with the form it must be in; None where a form is not possible.
        emit: The call itself, on operands in those forms.
        gives: Form of the outputs, for each of them.
        also: Forms worth considering beside those that the operands are in.
    """

    frame: Shape
    needs: Callable[[Form], Needs | None]
    emit: Callable[[Form, Sequence[relax.Expr]], relax.Expr]
    gives: Callable[[Form], tuple[Form, ...]]
    also: tuple[Form, ...] = ()


@dataclasses.dataclass(frozen=True)
class Operands:
    """What a rule may ask about the arguments of a call.

    Attributes:
        forms: Where constants become tensors.
        known: Tensors of the variables bound so far.
    """

    forms: Forms
    known: dict[relax.Var, Any]

    def tensor(self, expr: relax.Expr) -> Tensor | None:
        """The tensor that an argument is; None for anything else, or where a shape is unknown."""
        if isinstance(expr, GenericConst):
            return self.forms.constant(expr)
        found = self.known.get(expr) if isinstance(expr, relax.Var) else None
        return found if isinstance(found, Tensor) else None

    def tensors(self, exprs: Sequence[relax.Expr]) -> list[Tensor] | None:
        """The tensors of all ``exprs``, or None when one is none."""
        found = [self.tensor(expr) for expr in exprs]
        return None if any(t is None for t in found) else [t for t in found if t is not None]


Rule = Callable[[relax.Call, Operands], Follow | None]


def same(form: Form) -> tuple[Form, ...]:
    """Output forms of a call with one output that lies as the frame does."""
    return (form,)


def one_input(
    tensor: Tensor,
    possible: Callable[[Form], bool],
    emit: Callable[[Form, relax.Expr], relax.Expr],
    gives: Callable[[Form], tuple[Form, ...]] = same,
    also: tuple[Form, ...] = (),
) -> Follow:
    """A call of one tensor, whose frame is that tensor."""
    return Follow(
        tensor.shape,
        lambda form: [(tensor, form)] if possible(form) else None,
        lambda form, exprs: emit(form, exprs[0]),
        gives,
        also,
    )


def output_shape(call: relax.Call) -> Shape | None:
    """Static shape of a call with one output."""
    return static_shape(call.ty)


def positive(axis: Any, rank: int) -> int:
    """``axis`` counted from the front."""
    return int(axis) % rank if rank else 0
