"""Rewrite 1-D convolutions as 2-D convolutions of images with height 1.

before -> after, for x (1, 64, 100) and w (32, 64, 3)::

    y = relu(conv1d(x, w))

    y4 = relu(conv2d(expand_dims(x, 2), expand_dims(w, 2)))    # (1, 32, 1, 98)
    y = squeeze(y4, 2)

Layouts, kernels, algorithms and instructions for 2-D convolutions then serve networks of audio and
time series, too. Pooling, elementwise operators, concatenation, slices and padding between two
convolutions become operators on images as well, so that kernels still fuse, and the reshapes remain
at the ends of such a chain only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvmopt.transform.bound_calls import AlternativeMutator
from tvmopt.transform.conv2d import ints
from tvmopt.transform.layout.rules.elementwise import BINARY, UNARY
from tvmopt.transform.rewrite import rewrite_functions

_HEIGHT = 2  # axis of the height in NCHW
_RANK = 3  # of a sequence: batch, channels, width
_ELEMENTWISE = frozenset(f"relax.{name}" for name in (*UNARY, *BINARY))
_LAYOUTS = {
    "relax.nn.conv1d": ("NCW", "OIW", "NCHW", "OIHW"),
    "relax.nn.conv1d_transpose": ("NCW", "IOW", "NCHW", "IOHW"),
}
_CONV2D = {
    "relax.nn.conv1d": relax.op.nn.conv2d,
    "relax.nn.conv1d_transpose": relax.op.nn.conv2d_transpose,
}
_POOL2D = {
    "relax.nn.max_pool1d": relax.op.nn.max_pool2d,
    "relax.nn.avg_pool1d": relax.op.nn.avg_pool2d,
}


def conv1d_as_conv2d(mod: tvm.IRModule) -> tvm.IRModule:
    """Return ``mod`` with its 1-D convolutions as 2-D ones; see the module docstring.

    Anchors keep their order.
    """
    return rewrite_functions(mod, _ToImages(mod))


@mutator
class _ToImages(AlternativeMutator):
    """The alternative of a sequence is its image of height 1."""

    def view(self, alternative: relax.Var, call: relax.Call) -> relax.Expr:
        return relax.op.squeeze(alternative, [_HEIGHT])

    def alternative(self, call: relax.Call) -> relax.Expr | None:
        if not isinstance(call.op, tvm.ir.Op) or getattr(call.ty, "ndim", -1) != _RANK:
            return None
        name = call.op.name
        if name in _CONV2D:
            return self._convolution(call)
        if all(self.alternative_of(arg) is None for arg in _tensors(call)):
            return None
        if name in _ELEMENTWISE:
            return self._elementwise(call)
        rules: dict[str, Callable[[relax.Call], relax.Expr | None]] = {
            **dict.fromkeys(_POOL2D, self._pool),
            "relax.concat": self._concat,
            "relax.nn.pad": self._pad,
            "relax.strided_slice": self._strided_slice,
            "relax.nn.prelu": self._prelu,
        }
        rule = rules.get(name)
        return None if rule is None else rule(call)

    def _convolution(self, call: relax.Call) -> relax.Expr | None:
        attrs = call.attrs
        data_layout, kernel_layout, to_data, to_kernel = _LAYOUTS[call.op.name]
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != (data_layout, kernel_layout):
            return None
        if str(attrs.out_layout) not in ("", data_layout):
            return None
        fields: dict[str, Any] = {
            "strides": _wide(attrs.strides),
            "padding": _padding(attrs.padding),
            "dilation": _wide(attrs.dilation),
            "groups": int(attrs.groups),
            "data_layout": to_data,
            "kernel_layout": to_kernel,
            "out_layout": to_data,
            "out_dtype": attrs.out_dtype,
        }
        if hasattr(attrs, "output_padding"):
            fields["output_padding"] = [0, *ints(attrs.output_padding)]
        data, weight = (self._image(arg) for arg in call.args)
        return _CONV2D[call.op.name](data, weight, **fields)

    def _elementwise(self, call: relax.Call) -> relax.Expr | None:
        args = []
        for arg in call.args:
            rank = arg.ty.ndim if isinstance(arg.ty, relax.TensorType) else 0
            if not 0 <= rank <= _RANK:
                return None
            # A tensor of rank 2 broadcasts along the batch, one of rank 1 along the channels, too.
            args.append(self._image(arg) if rank > 1 else self.visit_expr(arg))
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _pool(self, call: relax.Call) -> relax.Expr | None:
        attrs = call.attrs
        if str(attrs.layout) != "NCW" or str(attrs.out_layout) not in ("", "NCW"):
            return None
        return _POOL2D[call.op.name](
            self._image(call.args[0]),
            _wide(attrs.pool_size),
            strides=_wide(attrs.strides),
            padding=_padding(attrs.padding),
            dilation=_wide(attrs.dilation),
            ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad),
            layout="NCHW",
        )

    def _concat(self, call: relax.Call) -> relax.Expr | None:
        if not isinstance(call.args[0], relax.Tuple):
            return None
        images = [self._image(field) for field in call.args[0].fields]
        return relax.op.concat(images, _axis(call.attrs.axis or 0))

    def _pad(self, call: relax.Call) -> relax.Expr:
        width = ints(call.attrs.pad_width)
        width[2 * _HEIGHT : 2 * _HEIGHT] = [0, 0]
        mode, value = str(call.attrs.pad_mode), float(call.attrs.pad_value)
        return relax.op.nn.pad(self._image(call.args[0]), width, mode, value)

    def _strided_slice(self, call: relax.Call) -> relax.Expr | None:
        data, axes, *bounds = call.args
        values = [getattr(field, "value", None) for field in getattr(axes, "fields", ())]
        if not values or not all(isinstance(value, int) for value in values):
            return None
        moved = relax.Tuple([relax.prim_value(_axis(value)) for value in values])
        args = [self._image(data), moved, *bounds]
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _prelu(self, call: relax.Call) -> relax.Expr:
        data, slope = call.args
        return relax.op.nn.prelu(self._image(data), self.visit_expr(slope), _axis(call.attrs.axis))

    def _image(self, arg: relax.Expr) -> relax.Expr:
        """Return the image of an operand; a view of the sequence where it has none."""
        found = self.alternative_of(arg)
        if found is not None:
            return found
        return self.builder_.emit(relax.op.expand_dims(self.visit_expr(arg), [arg.ty.ndim - 1]))


def _tensors(call: relax.Call) -> list[relax.Expr]:
    """Return the operands of a call, including the fields of a tuple."""
    return [e for arg in call.args for e in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]


def _axis(axis: Any) -> int:
    """Return the axis of an image for an axis of a sequence."""
    positive = int(axis) % _RANK
    return positive + (positive >= _HEIGHT)


def _wide(values: Sequence[Any]) -> list[int]:
    """Return (1, width) of the values of a 1-D window."""
    return [1, *ints(values)]


def _padding(values: Sequence[Any]) -> list[int]:
    """Return (top, left, bottom, right) of (left, right)."""
    left, right = ints(values)
    return [0, left, 0, right]
