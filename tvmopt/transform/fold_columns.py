"""Fold the columns of a kernel into K, where dot-product instructions would be filled with zeros.

A dot-product instruction multiplies groups of 4 (int8) or 2 (bfloat16) neighbours in memory. An
image of 1 or 3 channels has no such group in its channels, but its columns are neighbours too.

before -> after, for x (1, 224, 224, 3) in NHWC and a kernel of 7 x 7, stride 2::

    y = conv2d(x, w)                                        # K = 7 * 7 * (3 + 1 zero)

    y = conv2d(reshape(x, (1, 224, 1, 672)), w', strides=(2, 6))    # K = 7 * (21 + 3 zeros)

with w' of (7, 1, 24, outputs). An image of more than one channel must come from a kernel that only
moves data or computes elementwise, into which the reshape and the padding fuse.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvmopt.kernels.cpu.intrinsics.choose import multipliable, tiled
from tvmopt.transform.conv2d import ROWS, ints
from tvmopt.transform.integer.values import static_shape
from tvmopt.transform.k_granularity import missing
from tvmopt.transform.pad_early import NHWC, is_moved
from tvmopt.transform.rewrite import rewrite_functions


@tvm.transform.module_pass(opt_level=0, name="FoldColumns")
class FoldColumns:
    """Fold the columns of kernels into K; see the module docstring.

    Args:
        target: Target to compile for. Nothing changes for a target without dot-product
            instructions, nor where it has tile instructions for the operands, which take the
            columns one by one.
    """

    def __init__(self, target: Target | None) -> None:
        self.pairs = frozenset() if target is None else multipliable(target) - tiled(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to all Relax functions."""
        return rewrite_functions(mod, _Fold(mod, self.pairs)) if self.pairs else mod


@mutator
class _Fold(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, pairs: frozenset[tuple[str, str]]) -> None:
        super().__init__(mod)
        self._pairs = pairs

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.nn.conv2d":
            return call
        attrs, (data, weight) = call.attrs, call.args
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
        shapes = [static_shape(value) for value in (*call.args, call)]
        if layouts != NHWC or None in shapes or int(attrs.groups) != 1:
            return call
        dtype = str(data.ty.dtype)
        if (dtype, str(weight.ty.dtype)) not in self._pairs:
            return call
        x, w, y = (shape for shape in shapes if shape is not None)
        channels, columns = x[3], w[1]
        folded = columns * channels + missing(dtype, columns * channels)
        unfolded = columns * (channels + missing(dtype, channels))
        if int(attrs.dilation[1]) != 1 or folded >= unfolded:
            return call
        moved = is_moved(self, data)
        if channels > 1 and not moved:
            return call
        top, left, bottom, right = ints(attrs.padding)
        left, right, width, stride = (
            channels * extent for extent in (left, right, x[2], int(attrs.strides[1]))
        )
        right += max(0, (y[2] - 1) * stride + folded - (left + width + right))
        data = self.builder_.emit(relax.op.reshape(data, (*x[:2], 1, width)))
        if moved and any((top, left, bottom, right)):
            widths = [0, 0, top, bottom, 0, 0, left, right]
            data = self.builder_.emit(relax.op.nn.pad(data, widths))
            top = left = bottom = right = 0
        kernel = (w[0], 1, columns * channels, w[3])
        weight = self.builder_.emit(relax.op.reshape(weight, kernel))
        if folded > columns * channels:
            widths = [0, 0, 0, 0, 0, folded - columns * channels, 0, 0]
            weight = self.builder_.emit(relax.op.nn.pad(weight, widths))
        return relax.op.nn.conv2d(
            data,
            weight,
            strides=[int(attrs.strides[0]), stride],
            padding=[top, left, bottom, right],
            dilation=[int(attrs.dilation[0]), 1],
            groups=1,
            data_layout=ROWS.data,
            kernel_layout=ROWS.weight,
            out_layout=ROWS.result,
            out_dtype=attrs.out_dtype,
        )
