"""u8/s8 operand conversion: shift 8-bit operands to the signedness of the CPU's dot product.

With ``x' = x + 128`` in the other signedness, and likewise for ``w``:
    sum(x w) = sum(x' w) - 128 sum(w)           shift the data: one constant per channel
    sum(x w) = sum(x w') - 128 sum(x)           shift the weight: a window sum of the data

The window sum is equal for all output channels. Hence it first sums the channels of each pixel,
then the pixels of each window. The correction is fused into the convolution's epilogue, before the
requantize. int32 wraps around, so both identities are exact.

The identity for dense layers is TVM's (pull request 12911), which omits convolutions.
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


@tvm.transform.module_pass(opt_level=0, name="ConvertOperandSignedness")
class ConvertOperandSignedness:
    """Rewrite 8-bit convolutions and matmuls whose signedness the target does not support.

    Args:
        target: Target to compile for.
    """

    def __init__(self, target: tvm.target.Target) -> None:
        self.pairs = multipliable(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        if not self.pairs:
            return mod
        rewrite = _ShiftOperands(mod, self.pairs)
        rewrite.builder_.update_func(mod.get_global_var("main"), rewrite.visit_expr(mod["main"]))
        return rewrite.builder_.get()


def shifted_operands(types: Types, pairs: Collection[Types]) -> tuple[bool, bool] | None:
    """Return whether to shift data and weight, by the cheapest supported combination.

    Args:
        types: dtypes of data and weight.
        pairs: Supported pairs of dtypes.

    Returns:
        None when no combination is supported; (False, False) when no shift is needed.
    """
    if any(t not in _OTHER for t in types):
        return None
    for data, weight in ((False, False), (True, False), (False, True), (True, True)):
        shifted = (_OTHER[types[0]] if data else types[0], _OTHER[types[1]] if weight else types[1])
        if shifted in pairs:
            return data, weight
    return None


@mutator
class _ShiftOperands(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, pairs: Collection[Types]) -> None:
        super().__init__(mod)
        self._pairs = pairs
        self._shifted: dict[relax.Expr, relax.Expr] = {}

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name not in (_CONV, _MATMUL):
            return call
        data, weight = call.args
        if str(call.ty.dtype) != "int32" or None in (static_shape(data), static_shape(weight)):
            return call
        shifted = shifted_operands((str(data.ty.dtype), str(weight.ty.dtype)), self._pairs)
        if shifted is None or not any(shifted):
            return call
        if call.op.name == _MATMUL:
            return self._matmul(call, *shifted)
        layouts = (str(call.attrs.data_layout), str(call.attrs.kernel_layout))
        if layouts != ("NHWC", "HWIO") or int(call.attrs.groups) != 1:
            return call
        return self._conv2d(call, *shifted)

    def _matmul(self, call: relax.Call, shift_data: bool, shift_weight: bool) -> relax.Expr:
        """Correct with sums over K: rows of the data, columns of the weight."""
        data, weight = call.args
        if min(data.ty.ndim, weight.ty.ndim) < 2:
            return call
        used = self._other_signedness(data) if shift_data else data
        factor = self._other_signedness(weight) if shift_weight else weight
        result = self._emit(relax.op.matmul(used, factor, out_dtype="int32"))
        if shift_data:  # sum(x w) = sum(x' w) -+ 128 sum(w), w before its own shift
            columns = self._sum(weight, [-2])
            result = self._corrected(result, columns, data)
        if shift_weight:
            result = self._corrected(result, self._sum(used, [-1]), weight)
        return result

    def _conv2d(self, call: relax.Call, shift_data: bool, shift_weight: bool) -> relax.Expr:
        data, weight = call.args
        attrs = call.attrs
        top, left, bottom, right = ints(attrs.padding)
        used = self._other_signedness(data) if shift_data else data
        if any((top, left, bottom, right)):
            # A zero of the data becomes 128 in uint8, or -128 in int8.
            zero = _shift(str(data.ty.dtype)) if shift_data else 0
            widths = [0, 0, top, bottom, left, right, 0, 0]
            used = self._emit(relax.op.nn.pad(used, widths, pad_value=float(zero)))
        factor = self._other_signedness(weight) if shift_weight else weight
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
        if shift_data:
            result = self._corrected(result, self._sum(weight, [0, 1, 2]), data)
        if shift_weight:
            kernel = ints(weight.ty.shape)[:2]
            windows = self._window_sums(used, kernel, strides, dilation)
            result = self._corrected(result, windows, weight)
        return result

    def _window_sums(
        self, data: relax.Expr, kernel: list[int], strides: list[int], dilation: list[int]
    ) -> relax.Expr:
        """Return the window sums of the data, (n, h, w, 1)."""
        pixels = self._sum(data, [3])
        if kernel == [1, 1] == strides:
            return pixels
        hint = {"primfunc_name_hint": "window_sums"}
        return self._emit(
            self.builder_.call_te(window_sums, pixels, kernel, strides, dilation, **hint)
        )

    def _corrected(
        self, accumulator: relax.Expr, sums: relax.Expr, shifted: relax.Expr
    ) -> relax.Expr:
        """Subtract the contribution of the shift of operand ``shifted`` from an accumulator."""
        # x' = x + s, so that sum(x w) = sum(x' w) - s sum(w).
        shift = relax.const(_shift(str(shifted.ty.dtype)), "int32")
        scaled = self._emit(relax.op.multiply(sums, shift))
        return self._emit(relax.op.subtract(accumulator, scaled))

    def _sum(self, tensor: relax.Expr, axes: list[int]) -> relax.Expr:
        if isinstance(tensor, GenericConst):
            total = tensor.value.numpy().sum(axis=tuple(axes), keepdims=True, dtype=np.int64)
            return relax.const(total.astype(np.int32))
        wide = self._emit(relax.op.astype(tensor, "int32"))
        return self._emit(relax.op.sum(wide, axes, keepdims=True))

    def _other_signedness(self, tensor: relax.Expr) -> relax.Expr:
        """Shift a tensor by 128 into the dtype of the other signedness; shared by all users."""
        if isinstance(tensor, GenericConst):
            data = tensor.value.numpy()
            shifted = data.astype(np.int16) + _shift(str(data.dtype))
            return relax.const(shifted.astype(_OTHER[str(data.dtype)]))
        if tensor not in self._shifted:
            dtype = str(tensor.ty.dtype)
            wide = self._emit(relax.op.astype(tensor, "int16"))
            wide = self._emit(relax.op.add(wide, relax.const(_shift(dtype), "int16")))
            self._shifted[tensor] = self._emit(relax.op.astype(wide, _OTHER[dtype]))
        return self._shifted[tensor]

    def _emit(self, expr: relax.Expr) -> relax.Expr:
        return self.builder_.emit(expr)


def window_sums(
    data: te.Tensor, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> te.Tensor:
    """Return sums over the windows of a convolution.

    Args:
        data: (n, h, w, 1), padded.
        kernel: Window height and width.
        strides: Strides along h and w.
        dilation: Dilation along h and w.

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
    """Return the offset that converts a value of ``dtype`` to the other signedness."""
    return _HALF if dtype == "int8" else -_HALF
