"""Give convolutions rows of pixels that fill the tiles of matrix instructions.

A tile of AMX has up to 16 rows, which are pixels of one image line. Two kinds of images leave most
of a tile empty:

1. A convolution over a sequence is often exported as one over an image of width 1. Height and width
   are transposed; no data moves, because one of them is 1.
2. A line of 508 pixels has no divisor between 5 and 16. The line is padded, and the surplus pixels
   are sliced off: a copy costs less than three quarters of each tile.

before -> after, for x (1, 512, 1, 256) in NHWC and a kernel of 5 x 1::

    y = conv2d(x, w)                                        # (1, 508, 1, 512)
    ->
    t = conv2d(permute_dims(x), permute_dims(w), padding=[0, 0, 0, 4])      # (1, 1, 512, 512)
    y = permute_dims(strided_slice(t, ends of width: 508))
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvmopt.kernels.cpu.intrinsics.choose import tiled
from tvmopt.kernels.cpu.intrinsics.tile import MOST_ROWS
from tvmopt.transform.conv2d import ints
from tvmopt.transform.integer.values import static_shape
from tvmopt.transform.rewrite import rewrite_functions

_NHWC = ["NHWC", "HWIO", "NHWC"]


@tvm.transform.module_pass(opt_level=0, name="FillTileRows")
class FillTileRows:
    """Transpose and pad images whose lines do not fill tiles; see the module docstring.

    Args:
        target: Target to compile for; one without tile instructions needs no change.
    """

    def __init__(self, target: Target | None) -> None:
        self.pairs = frozenset() if target is None else tiled(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to all Relax functions."""
        return rewrite_functions(mod, _TileRows(mod, self.pairs)) if self.pairs else mod


@mutator
class _TileRows(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, pairs: frozenset[tuple[str, str]]) -> None:
        super().__init__(mod)
        self._pairs = pairs

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.nn.conv2d":
            return call
        attrs, (data, weight) = call.attrs, call.args
        layouts = [str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)]
        shapes = [static_shape(value) for value in (*call.args, call)]
        if layouts != _NHWC or None in shapes or int(attrs.groups) != 1:
            return call
        if (str(data.ty.dtype), str(weight.ty.dtype)) not in self._pairs:
            return call
        x, w, y = (shape for shape in shapes if shape is not None)
        is_narrow = x[2] == w[1] == y[2] == 1 and y[1] > 1
        rows = y[1] if is_narrow else y[2]
        is_pointwise = w[0] == w[1] == 1
        surplus = 0 if is_pointwise else _surplus(rows)
        if not is_narrow and not surplus:
            return call
        strides, dilation = ints(attrs.strides), ints(attrs.dilation)
        top, left, bottom, right = ints(attrs.padding)
        if is_narrow:
            data = self.builder_.emit(relax.op.permute_dims(data, [0, 2, 1, 3]))
            weight = self.builder_.emit(relax.op.permute_dims(weight, [1, 0, 2, 3]))
            strides, dilation = strides[::-1], dilation[::-1]
            top, left, bottom, right = left, top, right, bottom
        result = self.builder_.emit(
            relax.op.nn.conv2d(
                data,
                weight,
                strides=strides,
                padding=[top, left, bottom, right + surplus * strides[1]],
                dilation=dilation,
                data_layout="NHWC",
                kernel_layout="HWIO",
                out_layout="NHWC",
                out_dtype=attrs.out_dtype,
            )
        )
        if surplus:
            result = self.builder_.emit(relax.op.strided_slice(result, [2], [0], [rows]))
        return relax.op.permute_dims(result, [0, 2, 1, 3]) if is_narrow else result


def _surplus(rows: int) -> int:
    """Return the pixels that fill the last tile of a line; 0 where a divisor fills half a tile."""
    if rows <= MOST_ROWS or any(
        rows % count == 0 for count in range(MOST_ROWS // 2, MOST_ROWS + 1)
    ):
        return 0
    return -rows % MOST_ROWS
