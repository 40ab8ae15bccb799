"""Transpose images of width 1, so that their pixels are rows of the tiles of matrix instructions.

A convolution over a sequence is often exported as one over an image of width 1. A tile of AMX has
up to 16 rows, which are pixels of one image line. Height and width are transposed; no data moves,
because one of them is 1.

before -> after, for x (1, 512, 1, 256) in NHWC and a kernel of 5 x 1::

    y = conv2d(x, w)                                        # (1, 508, 1, 512)

    y = permute_dims(conv2d(permute_dims(x), permute_dims(w)))  # of (1, 1, 508, 512)
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvmopt.kernels.cpu.intrinsics.choose import tiled
from tvmopt.transform.conv2d import ints
from tvmopt.transform.conv2d_call import nhwc_shapes
from tvmopt.transform.rewrite import rewrite_functions


@tvm.transform.module_pass(opt_level=0, name="TransposeNarrowImages")
class TransposeNarrowImages:
    """Transpose images of width 1; see the module docstring.

    Args:
        target: Target to compile for; one without tile instructions needs no change.
    """

    def __init__(self, target: Target | None) -> None:
        self.pairs = frozenset() if target is None else tiled(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to all Relax functions."""
        return rewrite_functions(mod, _NarrowImages(mod, self.pairs)) if self.pairs else mod


@mutator
class _NarrowImages(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, pairs: frozenset[tuple[str, str]]) -> None:
        super().__init__(mod)
        self._pairs = pairs

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        shapes = nhwc_shapes(call)
        if shapes is None:
            return call
        attrs, (data, weight), (x, w, y) = call.attrs, call.args, shapes
        if (str(data.ty.dtype), str(weight.ty.dtype)) not in self._pairs:
            return call
        if not (x[2] == w[1] == y[2] == 1 and y[1] > 1):
            return call
        top, left, bottom, right = ints(attrs.padding)
        result = self.builder_.emit(
            relax.op.nn.conv2d(
                self.builder_.emit(relax.op.permute_dims(data, [0, 2, 1, 3])),
                self.builder_.emit(relax.op.permute_dims(weight, [1, 0, 2, 3])),
                strides=ints(attrs.strides)[::-1],
                padding=[left, top, right, bottom],
                dilation=ints(attrs.dilation)[::-1],
                data_layout="NHWC",
                kernel_layout="HWIO",
                out_layout="NHWC",
                out_dtype=attrs.out_dtype,
            )
        )
        return relax.op.permute_dims(result, [0, 2, 1, 3])
