"""Operands of attention: which tensor in memory is read, in which order of axes.

An operand's axes are letters of ``"bhsd"``; ``1`` is an axis of extent 1 without meaning::

    lv1 = reshape(x, (1, 16, 12, 64))
    lv2 = permute_dims(lv1, [0, 2, 3, 1])      # "bhds", the K^T of a matmul
    lv3 = multiply(lv2, 0.125)
    ->
    AttentionOperand(lv1, "bshd", scale=0.125)
"""

from __future__ import annotations

import dataclasses

from tvm import relax

from tvmopt.kernels.attention.problem import AXES
from tvmopt.transform.attention.producers import Producers
from tvmopt.transform.integer.values import static_shape

_FLOATS = ("float32", "float16", "bfloat16")
_UNIT = "1"


@dataclasses.dataclass(frozen=True)
class AttentionOperand:
    """Q, K or V.

    Attributes:
        source: The tensor that is read.
        axes: A letter for each axis of ``source``.
        scale: Factor on its values.
        shared: Consecutive heads of Q that share one head.
    """

    source: relax.Expr
    axes: str
    scale: float = 1.0
    shared: int = 1

    @property
    def dtype(self) -> str:
        """The dtype of ``source``."""
        return str(self.source.ty.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of ``source``, which is static."""
        return static_shape(self.source) or ()

    def extent(self, letter: str) -> int:
        """Return the extent of an axis; 1 if ``source`` has none of this name."""
        return dict(zip(self.axes, self.shape, strict=True)).get(letter, 1)

    @property
    def order(self) -> str:
        """The letters of all four axes in memory; axes that ``source`` lacks come first."""
        named = self.axes.replace(_UNIT, "")
        return "".join(letter for letter in AXES if letter not in named) + named

    def tensor(self) -> relax.Expr:
        """Return ``source`` with the four axes of :attr:`order`."""
        shape = tuple(self.extent(letter) for letter in self.order)
        return self.source if shape == self.shape else relax.op.reshape(self.source, shape)


def operand(expr: relax.Expr, axes: str, graph: Producers, scaled: bool) -> AttentionOperand | None:
    """Return the operand that ``expr`` is.

    Args:
        expr: An argument of a matmul, of static shape.
        axes: Letters of its axes.
        graph: The graph.
        scaled: Whether to take scalar factors off it.
    """
    if static_shape(expr) is None or len(static_shape(expr) or ()) != len(axes):
        return None
    dtype = str(expr.ty.dtype)
    found = here = AttentionOperand(expr, axes)
    while True:
        deeper = _before(here, graph, scaled)
        if deeper is None or static_shape(deeper.source) is None:
            return found
        here = deeper
        if here.dtype == dtype:  # rounding in between, and back, is left out
            found = here


def _before(at: AttentionOperand, graph: Producers, scaled: bool) -> AttentionOperand | None:
    """Return the operand one operator earlier; None where an operator computes it."""
    change = dataclasses.replace
    if (cast := graph.call(at.source, "astype")) is not None:
        return change(at, source=cast.args[0]) if _is_float(cast.args[0]) else None
    if (transposed := graph.call(at.source, "permute_dims")) is not None:
        order = transposed.attrs.axes
        places = list(map(int, order)) if order is not None else [*range(len(at.axes))][::-1]
        axes = [""] * len(places)
        for letter, place in zip(at.axes, places, strict=True):
            axes[place] = letter
        return change(at, source=transposed.args[0], axes="".join(axes))
    if scaled and (factored := graph.factored(at.source)) is not None:
        source, factor = factored
        return change(at, source=source, scale=at.scale * factor)
    if (shaped := graph.call(at.source, "reshape", "expand_dims", "squeeze")) is not None:
        shape = static_shape(shaped.args[0])
        if shape is None:
            return None
        axes_before = _unit_axes(at, shape)
        if axes_before is not None:
            return change(at, source=shaped.args[0], axes=axes_before)
        return _repeated(at, shaped.args[0], graph)
    if (again := graph.call(at.source, "repeat")) is not None:
        place = at.axes.find("h")
        if again.attrs.axis is not None and int(again.attrs.axis) % len(at.axes) == place:
            count = int(again.attrs.repeats)
            return change(at, source=again.args[0], shared=at.shared * count)
    return None


def _is_float(expr: relax.Expr) -> bool:
    return str(expr.ty.dtype) in _FLOATS


def _unit_axes(at: AttentionOperand, shape: tuple[int, ...]) -> str | None:
    """Return the axes of ``shape`` if it differs from ``at.shape`` by axes of extent 1 only."""
    wide = [letter for letter, extent in zip(at.axes, at.shape, strict=True) if extent != 1]
    if [e for e in shape if e != 1] != [e for e in at.shape if e != 1]:
        return None
    return "".join(wide.pop(0) if extent != 1 else _UNIT for extent in shape)


def _repeated(
    at: AttentionOperand, grouped: relax.Expr, graph: Producers
) -> AttentionOperand | None:
    """Return the heads that are repeated: ``reshape(broadcast_to(x[:, :, None]), ...)``."""
    shape, place = static_shape(grouped), at.axes.find("h")
    if shape is None or place < 0 or len(shape) != len(at.shape) + 1:
        return None
    heads, times = shape[place : place + 2]
    if (*shape[:place], heads * times, *shape[place + 2 :]) != at.shape:
        return None
    made = graph.call(grouped, "broadcast_to")
    source = made.args[0] if made is not None else graph.tiled(grouped)
    if source is None or static_shape(source) != (*shape[: place + 1], 1, *shape[place + 2 :]):
        return None
    axes = at.axes[: place + 1] + _UNIT + at.axes[place + 1 :]
    return dataclasses.replace(at, source=source, axes=axes, shared=at.shared * times)
