"""Layout rules of operators with an axis attribute: reductions, softmax, normalization."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax

from tvmopt.transform.layout.form import LayoutForm
from tvmopt.transform.layout.rules.base import Follow, Needs, Operands, one_input, positive, same

Reduction = Callable[[relax.Expr, list[int], bool], relax.Expr]
REDUCTIONS: dict[str, Reduction] = {
    "mean": relax.op.mean,
    "sum": relax.op.sum,
    "max": relax.op.max,
    "min": relax.op.min,
    "prod": relax.op.prod,
    "std": relax.op.std,
    "variance": relax.op.variance,
}
ARGUMENTS = {"argmax": relax.op.argmax, "argmin": relax.op.argmin}
SOFTMAX = {"nn.softmax": relax.op.nn.softmax, "nn.log_softmax": relax.op.nn.log_softmax}


def reduction(call: relax.Call, operands: Operands) -> Follow | None:
    """Reduce over the same logical axes, including the block of a blocked axis."""
    data = operands.tensor(call.args[0])
    if data is None:
        return None
    rank = len(data.shape)
    given, keep = call.attrs.axis, bool(call.attrs.keepdims)
    axes = range(rank) if given is None else [positive(a, rank) for a in given]
    op = REDUCTIONS[call.op.name.removeprefix("relax.")]

    def emit(form: LayoutForm, expr: relax.Expr) -> relax.Expr:
        return op(expr, sorted(d for a in set(axes) for d in form.dims(a)), keep)

    return one_input(data, lambda _: True, emit, lambda f: (_reduced(f, set(axes), keep),))


def argument(call: relax.Call, operands: Operands) -> Follow | None:
    """``argmax`` and ``argmin`` along an axis that is not blocked."""
    data = operands.tensor(call.args[0])
    if data is None or call.attrs.axis is None:
        return None
    axis, keep = positive(call.attrs.axis, len(data.shape)), bool(call.attrs.keepdims)
    op = ARGUMENTS[call.op.name.removeprefix("relax.")]
    return one_input(
        data,
        lambda form: form.block(axis) is None,
        lambda form, expr: op(expr, form.dim(axis), keep),
        lambda form: (_reduced(form, {axis}, keep),),
    )


def _reduced(form: LayoutForm, axes: set[int], keep: bool) -> LayoutForm:
    """Return the form of the result of a reduction over ``axes``."""
    if keep:
        return form
    left = [a for a in range(len(form.order)) if a not in axes]
    names = {a: k for k, a in enumerate(left)}
    return LayoutForm(
        tuple(names[a] for a in form.order if a in names),
        tuple((names[a], size) for a, size in form.blocks if a in names),
    )


def softmax(call: relax.Call, operands: Operands) -> Follow | None:
    """Softmax along an axis that is not blocked."""
    data = operands.tensor(call.args[0])
    if data is None:
        return None
    axis = positive(call.attrs.axis, len(data.shape))
    op = SOFTMAX[call.op.name.removeprefix("relax.")]
    return one_input(
        data, lambda form: form.block(axis) is None, lambda form, expr: op(expr, form.dim(axis))
    )


def layer_norm(call: relax.Call, operands: Operands) -> Follow | None:
    """Layer normalization over unblocked axes that keep their order, as scale and shift do."""
    data = operands.tensor(call.args[0])
    if data is None:
        return None
    axes = [positive(a, len(data.shape)) for a in call.attrs.axes]
    attrs = call.attrs

    def emit(form: LayoutForm, expr: relax.Expr) -> relax.Expr:
        return relax.op.nn.layer_norm(
            expr,
            *call.args[1:],
            axes=[form.dim(a) for a in axes],
            epsilon=float(attrs.epsilon),
            center=bool(attrs.center),
            scale=bool(attrs.scale),
        )

    return _normalised(call, operands, lambda form: _in_order(form, axes), emit)


def instance_norm(call: relax.Call, operands: Operands) -> Follow | None:
    """Instance normalization: channels and reduced axes may have any order, without blocks."""
    data = operands.tensor(call.args[0])
    if data is None:
        return None
    attrs, rank = call.attrs, len(data.shape)
    channel = positive(attrs.channel_axis, rank)
    axes = [positive(a, rank) for a in attrs.axes]

    def emit(form: LayoutForm, expr: relax.Expr) -> relax.Expr:
        return relax.op.nn.instance_norm(
            expr,
            *call.args[1:],
            channel_axis=form.dim(channel),
            axes=sorted(form.dim(a) for a in axes),
            epsilon=float(attrs.epsilon),
            center=bool(attrs.center),
            scale=bool(attrs.scale),
        )

    return _normalised(call, operands, lambda form: not form.blocks, emit)


def _normalised(
    call: relax.Call,
    operands: Operands,
    possible: Callable[[LayoutForm], bool],
    emit: Callable[[LayoutForm, relax.Expr], relax.Expr],
) -> Follow | None:
    data, *parameters = (operands.tensor(arg) for arg in call.args)
    if data is None or any(p is None or p.data is None for p in parameters):
        return None

    def needs(form: LayoutForm) -> Needs | None:
        return [(data, form)] if possible(form) else None

    def emit_one(form: LayoutForm, exprs: Sequence[relax.Expr]) -> relax.Expr:
        return emit(form, exprs[0])

    return Follow(data.shape, needs, emit_one, same)


def _in_order(form: LayoutForm, axes: list[int]) -> bool:
    places = [form.dim(a) for a in axes]
    return places == sorted(places) and not any(form.block(a) for a in axes)
