"""Reshapes and transposes as views, which share the memory of their base tensor."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from tvmopt.transform.layout.form import LayoutForm, change, reshape_form, transpose_form
from tvmopt.transform.layout.tensors import Tensor, static_shape

RESHAPES = ("relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims")
TRANSPOSE = "relax.permute_dims"
BROADCAST = "relax.broadcast_to"
VIEWS = (*RESHAPES, TRANSPOSE, BROADCAST)  # broadcast_to only when it changes nothing


def view(name: str, call: relax.Call, base: Tensor) -> Tensor | None:
    """Return the result of a reshape or transpose of ``base``; None for other calls."""
    shape = static_shape(call.ty)
    if shape is None or math.prod(shape) == 0:
        return None
    if call.op.name in RESHAPES or (call.op.name == BROADCAST and shape == base.shape):
        return base.reshaped(name, shape)
    if call.op.name == TRANSPOSE:
        axes, back = _axes(call)
        out = base.view(
            name,
            shape,
            lambda form: transpose_form(form, axes),
            lambda form: transpose_form(form, back),
        )
        out.transposes = 1
        return out
    return None


def before(call: relax.Call, form: LayoutForm) -> LayoutForm | None:
    """Return the input form of a reshape or transpose from the result's form, or None."""
    shape, out = static_shape(call.args[0].ty), static_shape(call.ty)
    if shape is None or out is None:
        return None
    if call.op.name == TRANSPOSE:
        return transpose_form(form, _axes(call)[1])
    if call.op.name == BROADCAST:
        return form if len(shape) == len(out) else None
    return reshape_form(form, out, shape)


def _axes(call: relax.Call) -> tuple[list[int], list[int]]:
    """Return the axes of a transpose, and of its inverse."""
    rank = len(call.args[0].ty.shape)
    given = call.attrs.axes
    axes = [int(a) % rank for a in given] if given is not None else [*range(rank)][::-1]
    return axes, [axes.index(a) for a in range(rank)]


def flattened(tensor: Tensor) -> tuple[Tensor, LayoutForm, list[int]] | None:
    """Find a form in which a flattened tensor exists without moving data.

    The consumer must then permute its operand. Example: ``(n, c, h, w) -> (n, c * h * w)`` of a
    tensor in NHWC returns that tensor, that form, and for every column of the NHWC reshape the
    column of the original.

    Returns:
        None when ``tensor`` is not such a view, or already exists in its original form.
    """
    base = tensor.base
    identity = LayoutForm.identity(len(tensor.shape))
    if base is None or tensor.is_native() or identity in tensor.available():
        return None
    rank = len(base.shape)
    for form in base.available():
        # The leading axes (all except the flattened ones) must be outermost, in order.
        for lead in range(rank):
            columns = math.prod(base.shape[lead:])
            if columns != tensor.shape[-1] or not _leads(form, base.shape, lead):
                continue
            numbers = _columns(form, base.shape, lead)
            return base, form, numbers
    return None


def _leads(form: LayoutForm, shape: tuple[int, ...], lead: int) -> bool:
    moving = [a for a in form.order if shape[a] > 1]
    wanted = [a for a in range(lead) if shape[a] > 1]
    return moving[: len(wanted)] == wanted and not any(
        a < lead and shape[a] > 1 for a, _ in form.blocks
    )


def _columns(form: LayoutForm, shape: tuple[int, ...], lead: int) -> list[int]:
    inner = (1,) * lead + shape[lead:]
    step = change(inner, LayoutForm.identity(len(shape)), form)
    assert step is not None
    numbers = np.arange(math.prod(inner)).reshape(inner)
    return [int(n) for n in step(numbers).ravel()]
