"""Fuse a convolution's zero padding into the producer of its data.

before -> after, for data made by a transpose, or elementwise from the model's input::

    x = astype(transpose(image), "bfloat16");  y = conv2d(x, w, padding=[3, 3, 3, 3])
    ->
    x = pad(astype(transpose(image), "bfloat16"), 3, and channels 3 to 4)
    y = conv2d(x, w padded to 4 channels)

FuseOps fuses the pad into the kernel that makes ``x``, so that no kernel copies the image again.
The pass covers narrow dtypes only, whose kernels pad K to the granularity of dot-product
instructions. It does not pad the result of a convolution, because a pad cannot be fused after a
reduction.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.conv2d import ints
from tvmopt.transform.conv2d_call import NHWC, nhwc_shapes
from tvmopt.transform.k_granularity import DOT_DTYPES, missing_k

# Operators that do not fuse after a reduction; their own kernel writes the data anyway.
_MOVES = {
    f"relax.{name}"
    for name in ("permute_dims", "nn.pad", "layout_transform", "reshape", "expand_dims")
}
_ELEMENTWISE = {
    f"relax.{name}"
    for name in ("astype", "clip", "round", "add", "subtract", "multiply", "divide", "nn.relu")
}


@tvm.transform.module_pass(opt_level=0, name="PadEarly")
class PadEarly:
    """Pad the data of narrow NHWC convolutions in its producer; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        rewrite = _Rewrite(mod)
        rewrite.builder_.update_func(mod.get_global_var("main"), rewrite.visit_expr(mod["main"]))
        return rewrite.builder_.get()


@mutator
class _Rewrite(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if nhwc_shapes(call) is None:
            return call
        attrs, (data, weight) = call.attrs, call.args
        if str(data.ty.dtype) not in DOT_DTYPES:
            return call
        channels = missing_k(data.ty.dtype, weight, 2)
        top, left, bottom, right = ints(attrs.padding)
        if not any((channels, top, left, bottom, right)) or not is_moved(self, data):
            return call
        widths = [0, 0, top, bottom, left, right, 0, channels]
        padded = self.builder_.emit(relax.op.nn.pad(data, widths))
        if channels:
            weight = self.builder_.emit(relax.op.nn.pad(weight, [0, 0, 0, 0, 0, channels, 0, 0]))
        return relax.op.nn.conv2d(
            padded,
            weight,
            strides=list(attrs.strides),
            padding=[0, 0, 0, 0],
            dilation=list(attrs.dilation),
            groups=1,
            data_layout=NHWC[0],
            kernel_layout=NHWC[1],
            out_layout=NHWC[2],
            out_dtype=attrs.out_dtype,
        )


def is_moved(rewriter: PyExprMutator, data: relax.Expr) -> bool:
    """Return whether ``data`` comes elementwise from a model input or from data movement."""
    made = rewriter.lookup_binding(data) if isinstance(data, relax.Var) else None
    if made is None:
        return isinstance(data, relax.Var)
    if not isinstance(made, relax.Call) or not isinstance(made.op, tvm.ir.Op):
        return False
    if made.op.name in _MOVES:
        return True
    return made.op.name in _ELEMENTWISE and is_moved(rewriter, made.args[0])
