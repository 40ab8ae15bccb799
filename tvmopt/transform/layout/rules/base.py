"""Interface of a layout rule: the forms in which a call can run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm.ir import GenericConst

from tvmopt.transform.layout.form import LayoutForm, Shape
from tvmopt.transform.layout.tensors import Forms, Tensor, static_shape

Needs = list[tuple[Tensor, LayoutForm]]


@dataclasses.dataclass(frozen=True)
class Follow:
    """A call that can run in several forms.

    A form orders the axes of the *frame*: the input's shape for operators that change the shape
    (reductions), the output's shape for operators that broadcast.

    Attributes:
        frame: Logical shape of the frame.
        needs: Returns the operands with their required forms; None when a form is not possible.
        emit: Returns the call on operands in these forms.
        gives: Returns the form of each output.
        also: Forms to consider besides the operands' forms.
    """

    frame: Shape
    needs: Callable[[LayoutForm], Needs | None]
    emit: Callable[[LayoutForm, Sequence[relax.Expr]], relax.Expr]
    gives: Callable[[LayoutForm], tuple[LayoutForm, ...]]
    also: tuple[LayoutForm, ...] = ()


@dataclasses.dataclass(frozen=True)
class Operands:
    """Arguments of a call, as a rule sees them.

    Attributes:
        forms: Provides the tensors of constants.
        known: Tensors of the variables bound so far.
    """

    forms: Forms
    known: dict[relax.Var, Any]

    def tensor(self, expr: relax.Expr) -> Tensor | None:
        """Return the tensor of an argument; None for other values and unknown shapes."""
        if isinstance(expr, GenericConst):
            return self.forms.constant(expr)
        found = self.known.get(expr) if isinstance(expr, relax.Var) else None
        return found if isinstance(found, Tensor) else None

    def tensors(self, exprs: Sequence[relax.Expr]) -> list[Tensor] | None:
        """Return the tensors of all ``exprs``; None when one is not a tensor."""
        found = [self.tensor(expr) for expr in exprs]
        return None if any(t is None for t in found) else [t for t in found if t is not None]


Rule = Callable[[relax.Call, Operands], Follow | None]


def same(form: LayoutForm) -> tuple[LayoutForm, ...]:
    """Return the output form of a call with one output in the form of the frame."""
    return (form,)


def one_input(
    tensor: Tensor,
    possible: Callable[[LayoutForm], bool],
    emit: Callable[[LayoutForm, relax.Expr], relax.Expr],
    gives: Callable[[LayoutForm], tuple[LayoutForm, ...]] = same,
    also: tuple[LayoutForm, ...] = (),
) -> Follow:
    """Return the rule result of a call with one tensor, which is the frame."""
    return Follow(
        tensor.shape,
        lambda form: [(tensor, form)] if possible(form) else None,
        lambda form, exprs: emit(form, exprs[0]),
        gives,
        also,
    )


def output_shape(call: relax.Call) -> Shape | None:
    """Return the static shape of a call with one output."""
    return static_shape(call.ty)


def positive(axis: Any, rank: int) -> int:
    """Return ``axis`` counted from the front."""
    return int(axis) % rank if rank else 0
