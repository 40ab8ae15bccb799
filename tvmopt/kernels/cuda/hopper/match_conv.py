"""Match a sum reduction to an NHWC convolution, also to the packed form for few channels."""

from __future__ import annotations

from typing import Any

from tvm import sym, tirx

from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.expressions import NotThisForm, Stage, linear, number
from tvmopt.kernels.cuda.hopper.few_channels_problem import LineProblem


def convolution(anchor: Stage, left: Any, right: Any, dtype: str, out: str) -> ConvProblem:
    """Match a reduction to a convolution.

    Args:
        anchor: The reduction block.
        left: The load of the image, and the condition of its padding (or None).
        right: The load of the weight, and the condition of its padding (or None).
        dtype: Dtype of image and weight.
        out: Output dtype.

    Returns:
        The problem, without epilogue.

    Raises:
        NotThisForm: When the reduction is no such convolution.
    """
    (x, condition), (weight, masked) = left, right
    if masked is not None:
        raise NotThisForm("a padded weight")
    if len(x.source.shape) != 4 or len(weight.source.shape) != 4 or len(anchor.indices) != 4:
        raise NotThisForm("neither a matrix product nor a convolution of images")
    sizes = [number(e) for e in (*x.source.shape, *weight.source.shape, *anchor.buffer.shape)]
    if not all(isinstance(e, int) for e in sizes):
        raise NotThisForm("a convolution of dynamic size")
    images, height, width, channels = sizes[:4]
    parallel = anchor.parallel
    if len(parallel) != 4 or not all(
        isinstance(i, tirx.Var) and i.same_as(v)
        for i, v in zip(anchor.indices, parallel, strict=True)
    ):
        raise NotThisForm("the sum is not written in order")
    n, y, w, f = parallel
    out_n, out_h, out_w, filters = sizes[8:]
    places = [linear(i, anchor.axes, anchor.extents) for i in x.indices]
    reduced = {v for v, r in zip(anchor.axes, anchor.reduce, strict=True) if r}

    def plain(place: Any, axis: Any, extent: int) -> bool:
        factors, rest = place
        if rest:
            return False
        return factors == {} if extent == 1 else list(factors.items()) == [(axis, 1)]

    if not plain(places[0], n, out_n) or images != out_n:
        raise NotThisForm("the images of a convolution are not in order")
    window = []
    for (factors, rest), axis in zip(places[1:3], (y, w), strict=True):
        inner = [v for v in factors if v in reduced]
        if len(inner) > 1 or any(v not in reduced and not v.same_as(axis) for v in factors):
            raise NotThisForm("the window of a convolution is of no form that is known")
        window.append((factors.get(axis, 1), inner[0] if inner else None, rest, factors))
    (sh, ry, top, fh), (sw, rx, left_side, fw) = window
    kh = anchor.extent(ry) if ry is not None else 1
    kw = anchor.extent(rx) if rx is not None else 1
    dh = fh[ry] if ry is not None else 1
    dw = fw[rx] if rx is not None else 1
    deep = list(places[3][0])
    alone = len(deep) == 1 and deep[0] in reduced and places[3] == ({deep[0]: 1}, 0)
    if channels > 1 and not alone:
        raise NotThisForm("the channels of a convolution are in groups")
    rc = deep[0] if deep else None
    others = {v for v, e in zip(anchor.axes, anchor.extents, strict=True) if v in reduced and e > 1}
    if others - {v for v in (ry, rx, rc) if v is not None}:
        raise NotThisForm("a sum over more than a window and channels")
    at_weight = [linear(i, anchor.axes, anchor.extents) for i in weight.indices]
    shape = sizes[4:8]
    layout = None
    for name in ("OHWI", "HWIO"):
        axes = {"O": (f, filters), "H": (ry, kh), "W": (rx, kw), "I": (rc, channels)}
        if all(
            size == axes[letter][1] and plain(place, *axes[letter])
            for letter, size, place in zip(name, shape, at_weight, strict=True)
        ):
            layout = name
            break
    if layout is None:
        raise NotThisForm("the weight is neither OHWI nor HWIO")
    if min(sh, sw, dh, dw) < 1:
        raise NotThisForm("a window that moves backwards")
    if condition is not None:
        _check_padding(condition, x)
    top, left_side = -top, -left_side
    bottom = (out_h - 1) * sh + (kh - 1) * dh + 1 - height - top
    right_side = (out_w - 1) * sw + (kw - 1) * dw + 1 - width - left_side
    return ConvProblem(
        images, height, width, channels, filters, (kh, kw), (sh, sw),
        (top, left_side, bottom, right_side), (dh, dw), dtype, out, layout,
    )  # fmt: skip


def line_problem_of(anchor: Stage, left: Any, right: Any, dtype: str, out: str) -> LineProblem:
    """Match the packed form for few channels; arguments and errors as in :func:`convolution`."""
    (x, condition), (weight, masked) = left, right
    reduced = [v for v, r in zip(anchor.axes, anchor.reduce, strict=True) if r]
    parallel = anchor.parallel
    if condition is not None or masked is not None:
        raise NotThisForm("an operand that is padded")
    if len(x.indices) != 3 or len(weight.indices) != 3 or len(parallel) != 4 or len(reduced) != 2:
        raise NotThisForm("not the lines of an image")
    sizes = [number(e) for e in (*x.source.shape, *weight.source.shape, *anchor.buffer.shape)]
    if not all(isinstance(e, int) for e in sizes):
        raise NotThisForm("a convolution of dynamic size")
    images, height, width, filters, lines, window = sizes[:6]
    n, y, w, o = parallel
    g, e = reduced

    def place(load: Any) -> list[tuple[dict[Any, int], int]]:
        return [linear(i, anchor.axes, anchor.extents) for i in load.indices]

    def only(axes: dict[Any, int]) -> tuple[dict[Any, int], int]:
        return {v: s for v, s in axes.items() if anchor.extent(v) != 1}, 0

    at_x = place(x)
    step, pixel = at_x[1][0].get(y, 1), at_x[2][0].get(w, 1)
    wanted_x = [only({n: 1}), only({y: step, g: 1}), only({w: pixel, e: 1})]
    wanted_w = [only({o: 1}), only({g: 1}), only({e: 1})]
    if at_x != wanted_x or place(weight) != wanted_w or sizes[6] != images:
        raise NotThisForm("not the lines of an image")
    return LineProblem(
        images, height, width, filters, (sizes[7], sizes[8]), lines, window, step, pixel,
        dtype, out,
    )  # fmt: skip


def _check_padding(condition: Any, load: Any) -> None:
    """Raise unless ``condition`` only tests the bounds of the tensor."""
    analyzer = sym.Analyzer()
    bounds = []
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        bounds += [index, extent - 1 - index]
    todo = [condition]
    while todo:
        one = todo.pop()
        if isinstance(one, tirx.And):
            todo += [one.a, one.b]
            continue
        if isinstance(one, tirx.LE):
            least = one.b - one.a
        elif isinstance(one, tirx.LT):
            least = one.b - one.a - 1
        elif isinstance(one, tirx.GE):
            least = one.a - one.b
        elif isinstance(one, tirx.GT):
            least = one.a - one.b - 1
        else:
            raise NotThisForm("padding by a condition that is not known")
        if not any(analyzer.can_prove_equal(least, bound) for bound in bounds):
            raise NotThisForm("padding by a condition that is not known")
