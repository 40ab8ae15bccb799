"""Fold the columns of a kernel over one channel into K, which would hold mostly zeros otherwise.

A dot-product instruction multiplies groups of 4 (int8) or 2 (bfloat16) neighbours in memory. An
image of one channel has no such group in its channels, but its columns are neighbours too.

before -> after, for x (1, 1, 16000, 1) in NHWC and a kernel of 1 x 79::

    y = conv2d(x, w)                                       # K = 79 * (1 + 3 zeros)

    y = conv2d(reshape(x, (1, 1, 1, 16000)), w')           # K = 79 + 1 zero

with w' of (1, 1, 80, outputs). If the kernel has one column, its rows are folded, and the image is
transposed. An image of three channels is left alone: the kernel that transposes and pads it to four
channels is faster than one that packs three.
"""

from __future__ import annotations

import dataclasses

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvmopt.kernels.cpu.intrinsics.choose import dotted
from tvmopt.transform.conv2d import COLUMNS, ROWS, ints
from tvmopt.transform.conv2d_call import nhwc_shapes
from tvmopt.transform.k_granularity import missing
from tvmopt.transform.pad_early import is_moved
from tvmopt.transform.rewrite import rewrite_functions


@tvm.transform.module_pass(opt_level=0, name="FoldColumns")
class FoldColumns:
    """Fold the columns of kernels into K; see the module docstring.

    Args:
        target: Target to compile for. Nothing changes for operands without a dot-product
            instruction, such as bfloat16 on CPUs with AMX.
    """

    def __init__(self, target: Target | None) -> None:
        self.pairs = frozenset() if target is None else dotted(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to all Relax functions."""
        return rewrite_functions(mod, _ColumnFolder(mod, self.pairs)) if self.pairs else mod


@dataclasses.dataclass(frozen=True)
class _Axis:
    """Extents of a convolution along the height or the width.

    Attributes:
        size: Extent of the image.
        kernel: Extent of the kernel.
        stride: Distance of two windows.
        before: Padding before the image.
        after: Padding behind it.
        windows: Number of windows.
        dilation: Distance of two elements of the kernel.
    """

    size: int
    kernel: int
    stride: int
    before: int
    after: int
    windows: int
    dilation: int

    def widened(self, kernel: int) -> _Axis:
        """Return the axis of a larger kernel with as many windows."""
        end = (self.windows - 1) * self.stride + kernel
        more = max(0, end - (self.before + self.size + self.after))
        return dataclasses.replace(self, kernel=kernel, after=self.after + more)


@mutator
class _ColumnFolder(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, pairs: frozenset[tuple[str, str]]) -> None:
        super().__init__(mod)
        self._pairs = pairs

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        shapes = nhwc_shapes(call)
        if shapes is None:
            return call
        attrs, (data, weight), (x, w, y) = call.attrs, call.args, shapes
        dtype = str(data.ty.dtype)
        if (dtype, str(weight.ty.dtype)) not in self._pairs:
            return call
        top, left, bottom, right = ints(attrs.padding)
        strides, dilation = ints(attrs.strides), ints(attrs.dilation)
        high = _Axis(x[1], w[0], strides[0], top, bottom, y[1], dilation[0])
        wide = _Axis(x[2], w[1], strides[1], left, right, y[2], dilation[1])
        columns = wide.kernel == 1
        outer, inner = (wide, high) if columns else (high, wide)
        folded = inner.kernel + missing(dtype, inner.kernel)
        unfolded = inner.kernel * (1 + missing(dtype, 1))
        if x[3] != 1 or inner.dilation != 1 or folded >= unfolded:
            return call
        moved = is_moved(self, data)
        unpadded, inner = inner.kernel, inner.widened(folded)
        emit = self.builder_.emit
        if columns:
            data = emit(relax.op.permute_dims(data, [0, 2, 3, 1]))
            weight = emit(relax.op.permute_dims(weight, [1, 2, 0, 3]))
        else:
            data = emit(relax.op.reshape(data, (x[0], outer.size, 1, inner.size)))
            weight = emit(relax.op.reshape(weight, (outer.kernel, 1, unpadded, w[3])))
        if moved and any((outer.before, outer.after, inner.before, inner.after)):
            widths = [0, 0, outer.before, outer.after, 0, 0, inner.before, inner.after]
            data = emit(relax.op.nn.pad(data, widths))
            outer, inner = (dataclasses.replace(a, before=0, after=0) for a in (outer, inner))
        if folded > unpadded:
            widths = [0, 0, 0, 0, 0, folded - unpadded, 0, 0]
            weight = emit(relax.op.nn.pad(weight, widths))
        high, wide = (inner, outer) if columns else (outer, inner)
        layouts = COLUMNS if columns else ROWS
        return relax.op.nn.conv2d(
            data,
            weight,
            strides=[high.stride, wide.stride],
            padding=[high.before, wide.before, high.after, wide.after],
            dilation=[high.dilation, wide.dilation],
            groups=1,
            data_layout=layouts[0],
            kernel_layout=layouts[1],
            out_layout=layouts[2],
            out_dtype=attrs.out_dtype,
        )
