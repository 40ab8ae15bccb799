"""Signs that the CPU's instructions want: products of bytes move to the types it can multiply.

With ``x' = x + 128`` of the other signedness, and the same for ``w``:

    sum(x w) = sum(x' w) - 128 sum(w)           the data moves: one number a channel, a constant
    sum(x w) = sum(x w') - 128 sum(x)           the weight moves: a sum over each window of the data

The second sum of a convolution is a windowed one. It is the same for all output channels, so the
channels of each pixel are summed first, and then the pixels of each window; the result is fused
into the kernel of the convolution, before its requantise. int32 wraps around, so both are exact.
The identity for dense is TVM's (pull request 12911); it left convolutions open.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import tvm
from tvm import relax, te
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.kernels.cpu.intrinsics import multipliable
from tvmopt.transform.conv2d import ints, output_size
from tvmopt.transform.integer.values import static_shape

_HALF = 128
_OTHER = {"int8": "uint8", "uint8": "int8"}
_CONV, _MATMUL = "relax.nn.conv2d", "relax.matmul"

Types = tuple[str, str]


@tvm.transform.module_pass(opt_level=0, name="MatchSigns")
class MatchSigns:
    """Rewrite products of bytes whose signs the target has no instruction for.

    Args:
        target: What the module is compiled for.
    """

    def __init__(self, target: tvm.target.Target) -> None:
        self.pairs = multipliable(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        if not self.pairs:
            return mod
        rewrite = _Rewrite(mod, self.pairs)
        rewrite.builder_.update_func(mod.get_global_var("main"), rewrite.visit_expr(mod["main"]))
        return rewrite.builder_.get()


def moved_operands(types: Types, pairs: Collection[Types]) -> tuple[bool, bool] | None:
    """Whether data and weight must change their sign; the cheapest way that there is.

    Args:
        types: Of data and weight.
        pairs: Types that can be multiplied.

    Returns:
        None where nothing helps; (False, False) where nothing need change.
    """
    if any(t not in _OTHER for t in types):
        return None
    for data, weight in ((False, False), (True, False), (False, True), (True, True)):
        moved = (_OTHER[types[0]] if data else types[0], _OTHER[types[1]] if weight else types[1])
        if moved in pairs:
            return data, weight
    return None


@mutator
class _Rewrite(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, pairs: Collection[Types]) -> None:
        super().__init__(mod)
        self._pairs = pairs
        self._moved: dict[relax.Expr, relax.Expr] = {}

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name not in (_CONV, _MATMUL):
            return call
        data, weight = call.args
        if str(call.ty.dtype) != "int32" or None in (static_shape(data), static_shape(weight)):
            return call
        moved = moved_operands((str(data.ty.dtype), str(weight.ty.dtype)), self._pairs)
        if moved is None or not any(moved):
            return call
        if call.op.name == _MATMUL:
            return self._matmul(call, *moved)
        layouts = (str(call.attrs.data_layout), str(call.attrs.kernel_layout))
        if layouts != ("NHWC", "HWIO") or int(call.attrs.groups) != 1:
            return call
        return self._conv2d(call, *moved)

    def _matmul(self, call: relax.Call, move_data: bool, move_weight: bool) -> relax.Expr:
        """Sums over the reduction of either side: rows of the data, columns of the weight."""
        data, weight = call.args
        if min(data.ty.ndim, weight.ty.ndim) < 2:
            return call
        used = self._other_sign(data) if move_data else data
        factor = self._other_sign(weight) if move_weight else weight
        result = self._emit(relax.op.matmul(used, factor, out_dtype="int32"))
        if move_data:  # sum(x w) = sum(x' w) -+ 128 sum(w), w before it is moved itself
            columns = self._sum(weight, [-2])
            result = self._corrected(result, columns, data)
        if move_weight:
            result = self._corrected(result, self._sum(used, [-1]), weight)
        return result

    def _conv2d(self, call: relax.Call, move_data: bool, move_weight: bool) -> relax.Expr:
        data, weight = call.args
        attrs = call.attrs
        top, left, bottom, right = ints(attrs.padding)
        used = self._other_sign(data) if move_data else data
        if any((top, left, bottom, right)):
            # A zero of the data is 128 of the other sign; -128 for what was unsigned.
            zero = _shift(str(data.ty.dtype)) if move_data else 0
            widths = [0, 0, top, bottom, left, right, 0, 0]
            used = self._emit(relax.op.nn.pad(used, widths, pad_value=float(zero)))
        factor = self._other_sign(weight) if move_weight else weight
        strides, dilation = ints(attrs.strides), ints(attrs.dilation)
        result = self._emit(
            relax.op.nn.conv2d(
                used,
                factor,
                strides=strides,
                padding=[0, 0, 0, 0],
                dilation=dilation,
                groups=1,
                data_layout="NHWC",
                kernel_layout="HWIO",
                out_layout=attrs.out_layout,
                out_dtype="int32",
            )
        )
        if move_data:
            result = self._corrected(result, self._sum(weight, [0, 1, 2]), data)
        if move_weight:
            kernel = ints(weight.ty.shape)[:2]
            windows = self._window_sums(used, kernel, strides, dilation)
            result = self._corrected(result, windows, weight)
        return result

    def _window_sums(
        self, data: relax.Expr, kernel: list[int], strides: list[int], dilation: list[int]
    ) -> relax.Expr:
        """(n, h, w, 1): the sum of all data that an output sees."""
        pixels = self._sum(data, [3])
        if kernel == [1, 1] == strides:
            return pixels
        hint = {"primfunc_name_hint": "window_sums"}
        return self._emit(
            self.builder_.call_te(window_sums, pixels, kernel, strides, dilation, **hint)
        )

    def _corrected(self, product: relax.Expr, sums: relax.Expr, moved: relax.Expr) -> relax.Expr:
        """Take out of a product what moving the operand ``moved`` has put into it."""
        # x' = x + s, so that sum(x w) = sum(x' w) - s sum(w).
        shift = relax.const(_shift(str(moved.ty.dtype)), "int32")
        scaled = self._emit(relax.op.multiply(sums, shift))
        return self._emit(relax.op.subtract(product, scaled))

    def _sum(self, tensor: relax.Expr, axes: list[int]) -> relax.Expr:
        if isinstance(tensor, GenericConst):
            total = tensor.value.numpy().sum(axis=tuple(axes), keepdims=True, dtype=np.int64)
            return relax.const(total.astype(np.int32))
        wide = self._emit(relax.op.astype(tensor, "int32"))
        return self._emit(relax.op.sum(wide, axes, keepdims=True))

    def _other_sign(self, tensor: relax.Expr) -> relax.Expr:
        """The same numbers moved by 128, in the type of the other sign; once for all users."""
        if isinstance(tensor, GenericConst):
            data = tensor.value.numpy()
            moved = data.astype(np.int16) + _shift(str(data.dtype))
            return relax.const(moved.astype(_OTHER[str(data.dtype)]))
        if tensor not in self._moved:
            dtype = str(tensor.ty.dtype)
            wide = self._emit(relax.op.astype(tensor, "int16"))
            wide = self._emit(relax.op.add(wide, relax.const(_shift(dtype), "int16")))
            self._moved[tensor] = self._emit(relax.op.astype(wide, _OTHER[dtype]))
        return self._moved[tensor]

    def _emit(self, expr: relax.Expr) -> relax.Expr:
        return self.builder_.emit(expr)


def window_sums(
    data: te.Tensor, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> te.Tensor:
    """Sums over the windows of a convolution.

    Args:
        data: (n, h, w, 1), padded.
        kernel: Height and width of a window.
        strides: Along h and w.
        dilation: Along h and w.

    Returns:
        (n, out h, out w, 1).
    """
    batch, height, width, _ = ints(data.shape)
    (kh, kw), (sh, sw), (dh, dw) = kernel, strides, dilation
    size = output_size((height, width), (kh, kw), (sh, sw), (0, 0, 0, 0), (dh, dw))
    ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
    return te.compute(
        (batch, *size, 1),
        lambda n, y, x, c: te.sum(
            data[n, y * sh + ry * dh, x * sw + rx * dw, c],
            axis=[ry, rx],
        ),
        name="window_sums",
    )


def _shift(dtype: str) -> int:
    """What is added to a number of ``dtype`` to get the same one of the other sign."""
    return _HALF if dtype == "int8" else -_HALF
