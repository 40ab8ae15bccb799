"""Legalize convolutions and matmuls into the operand layouts of Hopper's wgmma kernels.

before -> after: ``matmul(x, w)`` with ``w`` of shape (k, n) -> matmul with ``transposed(w)`` of
shape (n, k), where wgmma requires K-major operands: 8-bit ones, and float32 ones that it reads as
TF32. ``conv2d`` of such operands with a weight in HWIO -> one in OHWI. A convolution with few
channels -> rows of pixels (:mod:`.few_channels`). Transposes of constant weights are folded. All
other operators use the common legalization.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx, topi

from tvmopt.kernels.cuda.hopper.few_channels import legalize_few_channels
from tvmopt.kernels.cuda.hopper.problem import OUTPUTS, needs_k_major
from tvmopt.transform.conv2d import cast_result, conv2d_plain, ints, sum_dtype
from tvmopt.transform.legalize import Legalize, legalize_map, or_winograd
from tvmopt.transform.winograd import WinogradRule


def hopper_legalize_map(
    winograd: WinogradRule | None = None, allow_tf32: bool = False
) -> dict[str, Legalize]:
    """Return the ``customize_legalize_map`` of ``relax.transform.LegalizeOps`` for Hopper.

    Args:
        winograd: As for :func:`~tvmopt.transform.legalize.legalize_map`.
        allow_tf32: Whether float32 operands may be read as TF32.
    """
    plain = legalize_map()
    matmul, conv2d = (
        functools.partial(special, dtypes=_k_major_dtypes(allow_tf32))
        for special in (_matmul, _conv2d)
    )
    return plain | {
        "relax.matmul": _or_else(matmul, plain["relax.matmul"]),
        "relax.nn.conv2d": or_winograd(winograd, _or_else(conv2d, plain["relax.nn.conv2d"])),
    }


def _or_else(special: Any, plain: Legalize) -> Legalize:
    """Return a legalization that uses ``plain`` where ``special`` returns None."""

    def run(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        found = special(builder, call)
        return plain(builder, call) if found is None else found

    return run


def _k_major_dtypes(allow_tf32: bool) -> tuple[str, ...]:
    """Return the operand dtypes that wgmma reads K-major only."""
    return tuple(d for d in OUTPUTS if needs_k_major(d) and (allow_tf32 or d != "float32"))


def _are_of(dtypes: Sequence[str], *args: relax.Expr) -> bool:
    """Return whether all tensors have the same dtype, which is one of ``dtypes``."""
    found = {str(arg.ty.dtype) for arg in args}
    return len(found) == 1 and found <= set(dtypes)


def _matmul(
    builder: relax.BlockBuilder, call: relax.Call, dtypes: Sequence[str]
) -> relax.Expr | None:
    """Legalize a matmul of ``dtypes`` with a weight matrix; return None for others."""
    x, weight = call.args
    if not _are_of(dtypes, x, weight) or weight.ty.ndim != 2 or x.ty.ndim < 2:
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

    transposed = builder.emit_te(topi.transpose, weight, [1, 0], primfunc_name_hint="transposed")
    return builder.call_te(multiply, x, transposed, primfunc_name_hint="matmul")


def _conv2d(
    builder: relax.BlockBuilder, call: relax.Call, dtypes: Sequence[str]
) -> relax.Expr | None:
    """Legalize a convolution with few channels or of ``dtypes``; return None for others."""
    attrs, (data, weight) = call.attrs, call.args
    lines = legalize_few_channels(builder, call)
    if lines is not None:
        return lines
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    shapes = [*(data.ty.shape or [None]), *(weight.ty.shape or [None])]
    if layouts != ("NHWC", "HWIO", "NHWC") or int(attrs.groups) != 1:
        return None
    if not _are_of(dtypes, data, weight) or not all(isinstance(d, tirx.IntImm) for d in shapes):
        return None
    weight_ohwi = builder.emit_te(
        topi.transpose, weight, [3, 0, 1, 2], primfunc_name_hint="transposed"
    )
    return builder.call_te(
        conv2d_plain,
        data,
        weight_ohwi,
        strides=tuple(ints(attrs.strides)),
        padding=tuple(ints(attrs.padding)),
        dilation=tuple(ints(attrs.dilation)),
        groups=1,
        out_dtype=str(call.ty.dtype),
        layouts=("NHWC", "OHWI"),
        primfunc_name_hint="conv2d",
    )
