"""ONNX's NonMaxSuppression as one TensorIR function whose limits are known at run time only.

For each class of each image: keep the indices of the boxes above the score threshold; then, as
often as boxes may be kept, take the best one and drop all that overlap it. Of equal scores the
first box wins, and a box without area overlaps nothing, as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.scheduled import OPAQUE, SCHEDULED_ATTR

#: Operands behind boxes and scores: dtype of each.
LIMITS = {"most": "int64", "iou_threshold": "float32", "score_threshold": "float32"}


def non_max_suppression(
    images: int, classes: int, boxes: int, kept: int, *, centred: bool, limits: Sequence[str]
) -> tirx.PrimFunc:
    """Return the function.

    Its parameters are boxes, float32 (images, boxes, 4); scores, float32 (images, classes, boxes);
    each of ``limits``, one value; and the outputs: indices of image, class and box, int64
    (images * classes * kept, 3), and the number of rows that hold any, int64 (1,).

    Args:
        images: Images of the batch.
        classes: Classes.
        boxes: Boxes of an image.
        kept: Most boxes to keep of a class.
        centred: Whether a box is (x of the centre, y, width, height), not two corners.
        limits: Names of the limits that are there, of ``LIMITS``.
    """
    with IRBuilder() as builder, build.prim_func(is_private=True, s_tir=True):
        build.func_name("main")
        build.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE, SCHEDULED_ATTR: True})
        of = {
            "boxes": build.arg("boxes", build.buffer((images, boxes, 4), "float32")),
            "scores": build.arg("scores", build.buffer((images, classes, boxes), "float32")),
        }
        for name in limits:
            of[name] = build.arg(name, build.buffer((1,), LIMITS[name]))
        rows = images * classes * kept
        out = build.arg("indices", build.buffer((rows, 3), "int64"))
        total = build.arg("total", build.buffer((1,), "int64"))
        pairs = images * classes
        found = build.alloc_buffer((pairs, kept), "int32", scope="global")
        counts = build.alloc_buffer((pairs,), "int32", scope="global")
        left = build.alloc_buffer((pairs, boxes), "int32", scope="global")
        with build.parallel(pairs) as pair:
            _Class(of, found, counts, left, pair, classes, boxes, kept, centred).emit()
        _gather(found, counts, out, total, classes, pairs, rows)
    return builder.get()


def _int(value: int) -> Expr:
    return tirx.const(value, "int32")


def _gather(
    found: tirx.Buffer, counts: tirx.Buffer, out: tirx.Buffer, total: tirx.Buffer,
    classes: int, pairs: int, rows: int,
) -> None:  # fmt: skip
    """Write the indices of all classes one after the other."""
    with build.grid(rows, 3) as (row, column):
        build.buffer_store(out, tirx.const(0, "int64"), [row, column])
    build.buffer_store(total, tirx.const(0, "int64"), [0])
    with build.serial(pairs) as pair, build.serial(counts[pair]) as n:
        row = total[0]
        build.buffer_store(out, (pair // classes).astype("int64"), [row, 0])
        build.buffer_store(out, (pair % classes).astype("int64"), [row, 1])
        build.buffer_store(out, found[pair, n].astype("int64"), [row, 2])
        build.buffer_store(total, total[0] + tirx.const(1, "int64"), [0])


class _Class:
    """The boxes of one class of one image."""

    def __init__(
        self, of: dict[str, tirx.Buffer], found: tirx.Buffer, counts: tirx.Buffer,
        left: tirx.Buffer, pair: Expr, classes: int, boxes: int, kept: int, centred: bool,
    ) -> None:  # fmt: skip
        self._of, self._found, self._counts, self._left = of, found, counts, left
        self._pair, self._boxes, self._kept, self._centred = pair, boxes, kept, centred
        self._image, self._class = pair // classes, pair % classes

    def emit(self) -> None:
        size = build.alloc_buffer((1,), "int32", scope="local")
        self._candidates(size)
        build.buffer_store(self._counts, _int(0), [self._pair])
        best = build.alloc_buffer((1,), "int32", scope="local")
        with build.serial(self._kept) as n, build.If(self._may_keep(n, size)), build.Then():
            build.buffer_store(best, self._left[self._pair, 0], [0])
            with build.serial(size[0]) as i:
                other = self._left[self._pair, i]
                with build.If(self._score(other) > self._score(best[0])), build.Then():
                    build.buffer_store(best, other, [0])
            build.buffer_store(self._found, best[0], [self._pair, n])
            build.buffer_store(self._counts, self._counts[self._pair] + 1, [self._pair])
            self._drop_overlapping(best, size)

    def _candidates(self, size: tirx.Buffer) -> None:
        """Collect the boxes above the score threshold."""
        build.buffer_store(size, _int(0), [0])
        threshold = self._of.get("score_threshold")
        with build.serial(self._boxes) as i:
            passes = tirx.const(True) if threshold is None else self._score(i) > threshold[0]
            with build.If(passes), build.Then():
                build.buffer_store(self._left, i, [self._pair, size[0]])
                build.buffer_store(size, size[0] + 1, [0])

    def _may_keep(self, n: Expr, size: tirx.Buffer) -> Expr:
        most = self._of.get("most")
        if most is None:
            return tirx.const(False)
        return tirx.all(size[0] > 0, n.astype("int64") < most[0])

    def _drop_overlapping(self, best: tirx.Buffer, size: tirx.Buffer) -> None:
        before = build.alloc_buffer((1,), "int32", scope="local")
        build.buffer_store(before, size[0], [0])
        build.buffer_store(size, _int(0), [0])
        with build.serial(before[0]) as i:
            other = self._left[self._pair, i]
            stays = tirx.all(other != best[0], tirx.Not(self._overlap(other, best[0])))
            with build.If(stays), build.Then():
                build.buffer_store(self._left, other, [self._pair, size[0]])
                build.buffer_store(size, size[0] + 1, [0])

    def _score(self, box: Expr) -> Expr:
        return self._of["scores"][self._image, self._class, box]

    def _corners(self, box: Expr) -> list[Expr]:
        """Return low x, low y, high x and high y of a box."""
        a, b, c, d = (self._of["boxes"][self._image, box, n] for n in range(4))
        if self._centred:
            half = tirx.const(0.5, "float32")
            return [a - c * half, b - d * half, a + c * half, b + d * half]
        return [tirx.min(a, c), tirx.min(b, d), tirx.max(a, c), tirx.max(b, d)]

    def _overlap(self, first: Expr, second: Expr) -> Expr:
        """Return whether the intersection of two boxes is too large a part of their union."""
        one, two = self._corners(first), self._corners(second)
        zero = tirx.const(0, "float32")

        def side(n: int) -> Expr:
            length = tirx.min(one[n + 2], two[n + 2]) - tirx.max(one[n], two[n])
            return tirx.max(length, zero)

        common = side(0) * side(1)
        areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, two)]
        union = areas[0] + areas[1] - common
        threshold = self._of.get("iou_threshold")
        bound = zero if threshold is None else threshold[0]
        return tirx.all(
            areas[0] > zero, areas[1] > zero, common > zero, union > zero, common / union > bound
        )
