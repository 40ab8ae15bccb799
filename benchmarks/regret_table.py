"""Built-in tasks of the regret table: kernels of common networks, by kind."""

from __future__ import annotations

from benchmarks.operator_table import PLAIN, same_convolution
from benchmarks.operators import MatMul, Operator

_RESNET_3X3 = ((64, 56), (128, 28), (256, 14), (512, 7))
# Convolutions without Winograd: channels, filters, size, kernel, stride.
_DIRECT = ((3, 64, 224, 7, 2), (3, 32, 224, 3, 2), (128, 128, 56, 3, 2), (32, 64, 28, 5, 1))
# 1 x 1 convolutions of ResNet-50, of MobileNetV2 and EfficientNet-Lite0: channels, filters, size.
_POINTWISE = ((64, 256, 56), (1024, 256, 14), (512, 2048, 7))
_NARROW = ((16, 96, 112), (144, 24, 56), (240, 40, 28), (112, 672, 14), (320, 1280, 7))
# Depthwise convolutions: channels, size, kernel, stride.
_DEPTHWISE = ((96, 112, 3, 2), (144, 56, 3, 1), (240, 28, 5, 1), (672, 14, 5, 1))


def regret_operators() -> list[tuple[str, Operator]]:
    """Return operators with their kinds; tvmopt lowers ``conv3x3`` to Winograd convolutions."""
    rows: list[tuple[str, Operator]] = [
        ("conv3x3", same_convolution(c, c, size, 3)) for c, size in _RESNET_3X3
    ]
    rows += [("conv", same_convolution(*shape)) for shape in _DIRECT]
    rows += [("pointwise", same_convolution(c, f, size, 1)) for c, f, size in _POINTWISE + _NARROW]
    rows += [
        ("depthwise", same_convolution(c, c, size, kernel, stride, c))
        for c, size, kernel, stride in _DEPTHWISE
    ]
    rows += [
        ("matmul", MatMul(1024, 1024, 1024)),
        ("matmul", MatMul(128, 768, 3072, bias=True)),
        ("matmul", MatMul(128, 64, 128, batch=12, constant=False)),
        ("matmul", MatMul(1, 2048, 1000, bias=True)),
    ]
    return [*rows, *(("rows" if len(op.shape) < 4 else "pooling", op) for op in PLAIN)]
