"""Layout rules of operators that join or split tensors along an axis: concat, split, pad, ..."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tvmopt.transform.layout.form import LayoutForm
from tvmopt.transform.layout.rules.base import (
    Follow,
    Needs,
    Operands,
    one_input,
    output_shape,
    positive,
    same,
)
from tvmopt.transform.layout.tensors import static_shape


def concat(call: relax.Call, operands: Operands) -> Follow | None:
    """Concatenate; along a blocked axis only if every part consists of whole blocks."""
    if not isinstance(call.args[0], relax.Tuple) or call.attrs.axis is None:
        return None
    tensors = operands.tensors(call.args[0].fields)
    shape = output_shape(call)
    if not tensors or shape is None:
        return None
    axis = positive(call.attrs.axis, len(shape))

    def needs(form: LayoutForm) -> Needs | None:
        whole = form.block(axis) or 1
        if any(t.shape[axis] % whole for t in tensors):
            return None
        return [(t, form) for t in tensors] if form.fits(shape) else None

    def emit(form: LayoutForm, exprs: Sequence[relax.Expr]) -> relax.Expr:
        return relax.op.concat(list(exprs), form.dim(axis))

    return Follow(shape, needs, emit, same)


def stack(call: relax.Call, operands: Operands) -> Follow | None:
    """Stack along a new axis, which becomes the outermost one."""
    if not isinstance(call.args[0], relax.Tuple):
        return None
    tensors = operands.tensors(call.args[0].fields)
    if not tensors:
        return None
    rank = len(tensors[0].shape)
    axis = positive(call.attrs.axis or 0, rank + 1)

    def gives(form: LayoutForm) -> tuple[LayoutForm, ...]:
        moved = form.renamed({a: a + (a >= axis) for a in range(rank)})
        order = list(moved.order)
        order.insert(axis if form.is_identity else 0, axis)
        return (LayoutForm(tuple(order), moved.blocks),)

    def emit(form: LayoutForm, exprs: Sequence[relax.Expr]) -> relax.Expr:
        return relax.op.stack(list(exprs), axis if form.is_identity else 0)

    return Follow(tensors[0].shape, lambda f: [(t, f) for t in tensors], emit, gives)


def split(call: relax.Call, operands: Operands) -> Follow | None:
    """Split; along a blocked axis only if every part consists of whole blocks."""
    data = operands.tensor(call.args[0])
    if data is None or not isinstance(call.ty, relax.TupleType):
        return None
    parts = [static_shape(field) for field in call.ty.fields]
    if any(part is None for part in parts):
        return None
    axis = positive(call.attrs.axis, len(data.shape))
    sizes = [part[axis] for part in parts if part is not None]
    bounds = [sum(sizes[: k + 1]) for k in range(len(sizes) - 1)]

    def possible(form: LayoutForm) -> bool:
        return all(size % (form.block(axis) or 1) == 0 for size in sizes)

    def emit(form: LayoutForm, expr: relax.Expr) -> relax.Expr:
        cuts = [bound // (form.block(axis) or 1) for bound in bounds]
        even = len(set(sizes)) == 1
        return relax.op.split(expr, len(sizes) if even else cuts, form.dim(axis))

    return one_input(data, possible, emit, lambda form: (form,) * len(sizes))


def strided_slice(call: relax.Call, operands: Operands) -> Follow | None:
    """Slice with positive strides; along a blocked axis only whole blocks."""
    data, shape = operands.tensor(call.args[0]), output_shape(call)
    lists = [_integers(arg) for arg in call.args[1:]]
    if data is None or shape is None or len(lists) < 3 or any(part is None for part in lists):
        return None
    axes, begins, ends, *rest = [part for part in lists if part is not None]
    steps = rest[0] if rest else [1] * len(axes)
    cuts: dict[int, tuple[int, int, int]] = {}
    for a, begin, end, step in zip(axes, begins, ends, steps, strict=True):
        axis = positive(a, len(data.shape))
        size = data.shape[axis]
        if step < 1:
            return None
        low, high, _ = slice(begin, end, step).indices(size)
        if len(range(low, high, step)) != shape[axis]:
            return None
        if (low, step) != (0, 1) or shape[axis] != size:
            cuts[axis] = (low, high, step)

    def possible(form: LayoutForm) -> bool:
        return all(
            step == 1 and low % block == 0 and high % block == 0 and data.shape[axis] > 1
            for axis, (low, high, step) in cuts.items()
            if (block := form.block(axis)) is not None
        )

    def emit(form: LayoutForm, expr: relax.Expr) -> relax.Expr:
        if form.is_identity:
            return relax.Call(call.op, [expr, *call.args[1:]], call.attrs, call.ty_args)
        if not cuts:
            return expr
        whole = {axis: form.block(axis) or 1 for axis in cuts}
        return relax.op.strided_slice(
            expr,
            [form.dim(axis) for axis in cuts],
            [low // whole[axis] for axis, (low, _, _) in cuts.items()],
            [high // whole[axis] for axis, (_, high, _) in cuts.items()],
            [step for _, _, step in cuts.values()],
        )

    return one_input(data, possible, emit)


def _integers(expr: relax.Expr) -> list[int] | None:
    values = [getattr(field, "value", None) for field in getattr(expr, "fields", [expr])]
    return [v for v in values if isinstance(v, int)] if _all_int(values) else None


def _all_int(values: Sequence[object]) -> bool:
    return all(isinstance(v, int) for v in values)


def pad(call: relax.Call, operands: Operands) -> Follow | None:
    """Pad; along a blocked axis only by whole blocks of a constant."""
    data = operands.tensor(call.args[0])
    if data is None:
        return None
    attrs = call.attrs
    width = [int(w) for w in attrs.pad_width]
    mode = str(attrs.pad_mode)
    pairs = list(zip(width[::2], width[1::2], strict=True))

    def possible(form: LayoutForm) -> bool:
        return all(
            pairs[axis] == (0, 0)
            or (mode == "constant" and not any(w % size for w in (*pairs[axis], data.shape[axis])))
            for axis, size in form.blocks
        )

    def emit(form: LayoutForm, expr: relax.Expr) -> relax.Expr:
        moved = [w // (form.block(axis) or 1) for axis in form.order for w in pairs[axis]]
        moved += [0, 0] * len(form.blocks)
        return relax.op.nn.pad(expr, moved, mode, float(attrs.pad_value))

    return one_input(data, possible, emit)


def broadcast_to(call: relax.Call, operands: Operands) -> Follow | None:
    """Broadcast to a static shape."""
    data, shape = operands.tensor(call.args[0]), output_shape(call)
    if data is None or shape is None:
        return None
    lifted = data.lifted(len(shape))

    def needs(form: LayoutForm) -> Needs | None:
        if form.is_identity:
            return [(data, LayoutForm.identity(len(data.shape)))]
        return [(lifted, form)] if form.fits(shape) and form.fits(lifted.shape) else None

    def emit(form: LayoutForm, exprs: Sequence[relax.Expr]) -> relax.Expr:
        return relax.op.broadcast_to(exprs[0], form.shape(shape))

    return Follow(shape, needs, emit, same)
