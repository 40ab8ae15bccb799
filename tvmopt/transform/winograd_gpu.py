"""Winograd convolution on a GPU: three kernels with intermediate results in memory.

before -> after::

    y = relu(conv2d(x, w) + bias)

    v = winograd_data(x)                (points, tiles, channels): bt d bt.T of every tile d
    p = winograd_product(v, u)          (points, tiles, outputs): a batched GEMM
    y = relu(winograd_out(p) + bias)    at p at.T, with the elementwise epilogue

Points are the (m + 2)^2 elements of a transformed tile, tiles count over all images, and ``u`` is
the transformed constant weight. The CPU version is one function (:mod:`.winograd`), because a
core's cache holds the intermediate results; the shared memory of a thread block is too small for
them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from tvm import relax

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.winograd.stages import winograd_data, winograd_out, winograd_product
from tvmopt.kernels.winograd_matrices import MATRICES
from tvmopt.transform.winograd import (
    OUT_ELEMENTWISE_FUSABLE,
    WinogradRule,
    winograd_weight,
)
from tvmopt.transform.winograd_gpu_model import choose_gpu_tile

# OpPatternKind of operators that are not fused.
_OPAQUE = 8


def gpu_rule(arch: CudaArch) -> WinogradRule:
    """Return the Winograd rule of ``arch``."""
    modelled = functools.partial(modelled_gpu_tile, arch=arch)
    return WinogradRule({"float32": tuple(MATRICES)}, modelled, as_gpu_winograd)


def modelled_gpu_tile(conv: relax.Call, arch: CudaArch) -> int:
    """Return the best tile size of a convolution that supports Winograd; 0 for direct."""
    batch, height, width, outputs = (int(e) for e in conv.ty.shape)
    image = math.prod(int(e) for e in conv.args[0].ty.shape)
    channels = int(conv.args[1].ty.shape[2])
    return choose_gpu_tile((batch, height, width), channels, outputs, image, arch)


def as_gpu_winograd(
    builder: relax.BlockBuilder,
    conv: relax.Call,
    m: int,
    marks: Mapping[str, int] | None = None,
) -> relax.Call:
    """Emit a convolution that :func:`~tvmopt.transform.winograd.takes_winograd` as three kernels.

    Args:
        builder: Block builder to emit into.
        conv: The convolution.
        m: Tile size.
        marks: Attributes of the TensorIR of the output transform.

    Returns:
        The call of the output transform; the other two kernels are emitted.
    """
    data, weight = conv.args
    top, left, bottom, right = (int(p) for p in conv.attrs.padding)
    transformed = winograd_weight(weight.value.numpy(), m)
    transformed = transformed.reshape((m + 2) ** 2, *transformed.shape[2:])
    opaque = {"op_pattern": _OPAQUE}
    tiles = builder.emit_te(
        winograd_data,
        data,
        m,
        (top, left, bottom, right),
        primfunc_name_hint="winograd_data",
        primfunc_attrs=opaque,
    )
    gemm_output = builder.emit_te(
        winograd_product,
        tiles,
        relax.const(transformed),
        primfunc_name_hint="winograd_product",
        primfunc_attrs=opaque,
    )
    return builder.call_te(
        winograd_out,
        gemm_output,
        m,
        tuple(int(e) for e in list(conv.ty.shape)[:3]),
        primfunc_name_hint="winograd_out",
        # TVM does not detect the pattern of a reduction with an elementwise end.
        primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE, **(marks or {})},
    )
