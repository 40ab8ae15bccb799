"""View the pixels of an image as rows of a matrix: a 1 x 1 convolution is one GEMM over all lines.

before -> after, height and width collapsed to ``p``, for lines of 38 pixels::

    Y[0, p // 38, p % 38, n] += A[0, p // 38, p % 38, k] * B[k, n]    # A: (1, 25, 38, K)
    Y[p, n] += A[p, k] * B[k, n]                                      # A: (950, K)

TVM matches no tensor intrinsic whose rows cross the end of a line: their region is no box. Callers
still pass images: :mod:`tvmopt.kernels.cpu.passes.parameter_shapes` declares each matrix as a view
of the parameter's data, after scheduling.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import tvm_ffi
from tvm import IRModule, ir, s_tir, sym, tirx

from tvmopt.kernels.cpu.common.contraction_form import (
    ContractionForm,
    contraction_form,
    match_contraction,
)
from tvmopt.kernels.rewrite import with_accesses
from tvmopt.kernels.scheduled import REWRITTEN_ATTR
from tvmopt.kernels.workload import Refusal

_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


def match_flat_rows(func: tirx.PrimFunc) -> ContractionForm | Refusal:
    """Normalise ``func`` with images as matrices; height and width stay where one cannot be.

    The schedule of the result is of a function whose parameters have other shapes than ``func``.
    """
    form = match_contraction(func)
    if isinstance(form, Refusal):
        return form
    sch = form.sch
    main = sch.mod["main"]
    images = _images(main)
    if not images:
        return form
    flat = _viewed(main, images) if images.keys() <= set(main.params) else None
    if flat is None:
        return match_contraction(func, collapse=False)
    viewed = s_tir.Schedule(IRModule({"main": flat}))
    blocks = (sch.get(block).name_hint for block in (form.anchor, form.epilogue))
    return contraction_form(func, viewed, *map(viewed.get_sblock, blocks))


def _images(func: tirx.PrimFunc) -> dict[tirx.Buffer, range]:
    """Map the buffers with divided indices, ``p // 38``, to their dimensions with such."""
    found: dict[tirx.Buffer, range] = {}

    def on_access(buffer: tirx.Buffer, indices: Sequence[ir.Expr]) -> None:
        divided = [d for d, index in enumerate(indices[:-1]) if _divides(index)]
        if divided:
            known = found.get(buffer, range(divided[0], divided[0]))
            first, last = min(known.start, divided[0]), max(known.stop, divided[-1] + 1)
            found[buffer] = range(first, last)

    callbacks = [
        (ir.TensorLoad, lambda load: on_access(load.source, load.indices)),
        (tirx.BufferStore, lambda store: on_access(store.buffer, store.indices)),
    ]
    tvm_ffi.structural_walk(func.body, callbacks, order="post")
    return found


@dataclasses.dataclass(frozen=True)
class _Matrix:
    """A view of an image with its dimensions ``merged`` as one: the lines and their pixels."""

    image: tirx.Buffer
    merged: range

    @functools.cached_property
    def buffer(self) -> tirx.Buffer:
        """The view."""
        extents = [int(extent) for extent in self.image.shape]
        rows = math.prod(extents[d] for d in self.merged)
        shape = [*extents[: self.merged.start], rows, *extents[self.merged.stop :]]
        wide = [tirx.IntImm("int64", extent) for extent in shape]
        return tirx.decl_buffer(wide, str(self.image.dtype), f"{self.image.name}_rows")

    def indices(self, of_image: Sequence[ir.Expr], analyzer: sym.Analyzer) -> list[ir.Expr]:
        """Return the indices of an element, given those in the image."""
        row: ir.Expr = tirx.IntImm("int64", 0)
        for d in self.merged:
            row = row * self.image.shape[d] + of_image[d]
        row = analyzer.simplify(row)
        return [*of_image[: self.merged.start], row, *of_image[self.merged.stop :]]


def _viewed(func: tirx.PrimFunc, images: dict[tirx.Buffer, range]) -> tirx.PrimFunc | None:
    """Return ``func`` on matrices instead of images; None where a row still is divided."""
    analyzer = sym.Analyzer()
    matrices = {image: _Matrix(image, merged) for image, merged in images.items()}
    rows: list[ir.Expr] = []

    def flat(
        image: tirx.Buffer, indices: Sequence[ir.Expr]
    ) -> tuple[tirx.Buffer, list[ir.Expr]] | None:
        matrix = matrices.get(image)
        if matrix is None:
            return None
        found = matrix.indices(list(indices), analyzer)
        rows.append(found[matrix.merged.start])
        return matrix.buffer, found

    def on_region(region: ir.TensorRegion) -> ir.TensorRegion:
        new = flat(region.source, [part.min for part in region.region])
        if new is None:
            return region
        return tirx.BufferRegion(new[0], [ir.Range.from_min_extent(i, 1) for i in new[1]])

    body = with_accesses(func.body, flat)
    body = tvm_ffi.structural_map(body, (ir.TensorRegion, on_region), order="post")
    if any(_divides(row) for row in rows):
        return None
    params = [matrices[p].buffer if p in matrices else p for p in func.params]
    made = tirx.PrimFunc(params, body, func.ret_type, func.attrs)
    return made.with_attr(REWRITTEN_ATTR, True)


def _divides(expr: ir.Expr) -> bool:
    found: list[ir.Expr] = []
    callbacks = [(kind, found.append) for kind in _DIVISIONS]
    tvm_ffi.structural_walk(expr, callbacks, order="post")
    return bool(found)
