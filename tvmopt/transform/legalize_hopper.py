"""Legalize convolutions and matmuls into the operand layouts of Hopper's wgmma kernels.

before -> after: 8-bit ``matmul(x, w)`` with ``w`` of shape (k, n) -> matmul with ``transposed(w)``
of shape (n, k), since 8-bit wgmma requires K-major operands. 8-bit ``conv2d`` with a weight in HWIO
-> one in OHWI. A convolution with few channels -> rows of pixels (:mod:`.few_channels`). Transposes
of constant weights are folded. All other operators use the common legalization.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi

from tvmopt.kernels.cuda.hopper.few_channels import legalize_few_channels
from tvmopt.kernels.cuda.hopper.problem import BYTES
from tvmopt.transform.conv2d import cast_result, conv2d_plain, ints, sum_dtype
from tvmopt.transform.legalize import Legalize, legalize_map, or_winograd
from tvmopt.transform.winograd import WinogradRule


def hopper_legalize_map(winograd: WinogradRule | None = None) -> dict[str, Legalize]:
    """Return the ``customize_legalize_map`` of ``relax.transform.LegalizeOps`` for Hopper.

    Args:
        winograd: As for :func:`~tvmopt.transform.legalize.legalize_map`.
    """
    plain = legalize_map()
    return plain | {
        "relax.matmul": _or_else(_matmul, plain["relax.matmul"]),
        "relax.nn.conv2d": or_winograd(winograd, _or_else(_conv2d, plain["relax.nn.conv2d"])),
    }


def _or_else(special: Any, plain: Legalize) -> Legalize:
    """Return a legalization that uses ``plain`` where ``special`` returns None."""

    def run(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        found = special(builder, call)
        return plain(builder, call) if found is None else found

    return run


def _is_narrow(*args: relax.Expr) -> bool:
    """Return whether all tensors have the same 8-bit dtype that tensor cores support."""
    dtypes = {str(arg.ty.dtype) for arg in args}
    return len(dtypes) == 1 and BYTES.get(dtypes.pop()) == 1


def _matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Legalize an 8-bit matmul with a weight matrix; return None for others."""
    x, weight = call.args
    if not _is_narrow(x, weight) or weight.ty.ndim != 2 or x.ty.ndim < 2:
        return None
    out = str(call.ty.dtype)
    accumulator = sum_dtype(str(x.ty.dtype), "float32" if "float" in out else out)

    def multiply(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, b.shape[1]), "k")
        total = te.compute(
            (*a.shape[:-1], b.shape[0]),
            lambda *at: te.sum(
                a[(*at[:-1], k)].astype(accumulator) * b[at[-1], k].astype(accumulator), axis=k
            ),
            name="matmul",
        )
        return cast_result(total, out)

    turned = builder.emit_te(topi.transpose, weight, [1, 0], primfunc_name_hint="transposed")
    return builder.call_te(multiply, x, turned, primfunc_name_hint="matmul")


def _conv2d(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Legalize a convolution with few channels or 8-bit operands; return None for others."""
    attrs, (data, weight) = call.attrs, call.args
    lines = legalize_few_channels(builder, call)
    if lines is not None:
        return lines
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    shapes = [*(data.ty.shape or [None]), *(weight.ty.shape or [None])]
    if layouts != ("NHWC", "HWIO", "NHWC") or int(attrs.groups) != 1:
        return None
    if not _is_narrow(data, weight) or not all(isinstance(d, tirx.IntImm) for d in shapes):
        return None
    turned = builder.emit_te(topi.transpose, weight, [3, 0, 1, 2], primfunc_name_hint="transposed")
    return builder.call_te(
        conv2d_plain,
        data,
        turned,
        strides=tuple(ints(attrs.strides)),
        padding=tuple(ints(attrs.padding)),
        dilation=tuple(ints(attrs.dilation)),
        groups=1,
        out_dtype=str(call.ty.dtype),
        layouts=("NHWC", "OHWI"),
        primfunc_name_hint="conv2d",
    )
