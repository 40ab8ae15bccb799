"""Built-in operators of the CPU benchmark: from ResNet-50, MobileNetV2, BERT and PP-OCR."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operators import Convolution, MatMul, Operator, Plain
from benchmarks.zoo_topologies import MOBILENET_V2_STAGES

KINDS = ("resnet", "pointwise", "conv", "depthwise", "matmul", "rest")


def resnet50_convolutions() -> list[Convolution]:
    """Return the distinct 3x3 and 1x1 convolutions of ResNet-50 v1.5, in network order."""
    found: list[Convolution] = []
    channels, size = 64, 56
    for stage in range(4):
        width = 64 * 2**stage
        for block in range(2):  # later blocks equal the second
            stride = 2 if stage > 0 and block == 0 else 1
            found += [
                same_convolution(channels, width, size, 1),
                same_convolution(width, width, size, 3, stride),
                same_convolution(width, 4 * width, size // stride, 1),
            ]
            if block == 0:
                found.append(same_convolution(channels, 4 * width, size, 1, stride))
            channels, size = 4 * width, size // stride
    return list(dict.fromkeys(found))


def mobilenet_v2_convolutions() -> list[Convolution]:
    """Return the distinct convolutions of MobileNetV2 without the stem, in network order."""
    found: list[Convolution] = []
    channels, size = 32, 112
    for expansion, filters, depth, first_stride in MOBILENET_V2_STAGES:
        for block in range(depth):
            stride, hidden = first_stride if block == 0 else 1, channels * expansion
            if expansion != 1:
                found.append(same_convolution(channels, hidden, size, 1))
            found.append(same_convolution(hidden, hidden, size, 3, stride, hidden))
            channels, size = filters, size // stride
            found.append(same_convolution(hidden, channels, size, 1))
    found.append(same_convolution(channels, 1280, size, 1))
    return list(dict.fromkeys(found))


def same_convolution(
    channels: int, filters: int, size: int, kernel: int, stride: int = 1, groups: int = 1
) -> Convolution:
    """Return a convolution with SAME padding of a square image of ``size`` x ``size``."""
    pads = (kernel // 2,) * 4
    return Convolution(
        channels, filters, (size, size), (kernel, kernel), (stride, stride), pads, groups=groups
    )


def _layer_norm(relax: Any, x: Any) -> Any:
    ones, zeros = (relax.const(f(768, np.float32)) for f in (np.ones, np.zeros))
    return relax.op.nn.layer_norm(x, ones, zeros, axes=[-1], epsilon=1e-5)


PLAIN = (
    Plain(
        "softmax_12x128x128",
        (12, 128, 128),
        5,
        lambda relax, x: relax.op.nn.softmax(x, axis=-1),
        lambda torch, x: torch.softmax(x, -1),
    ),
    Plain(
        "layer_norm_128x768",
        (128, 768),
        8,
        _layer_norm,
        lambda torch, x: torch.nn.functional.layer_norm(x, (768,)),
    ),
    Plain(
        "max_pool3x3_64_112x112_s2",
        (1, 64, 112, 112),
        9 / 4,
        lambda relax, x: relax.op.nn.max_pool2d(x, [3, 3], [2, 2], [1, 1, 1, 1], layout="NHWC"),
        lambda torch, x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
    ),
    Plain(
        "global_avg_pool_2048_7x7",
        (1, 2048, 7, 7),
        1,
        lambda relax, x: relax.op.mean(x, [1, 2], keepdims=True),
        lambda torch, x: torch.nn.functional.adaptive_avg_pool2d(x, 1),
    ),
)


def built_in() -> list[tuple[str, Operator]]:
    """Return pairs of kind and operator, one per row of the table."""
    rows: list[tuple[str, Operator]] = [("matmul", MatMul(s, s, s)) for s in (512, 1024)]
    rows += [
        ("matmul", MatMul(128, k, n, bias=True)) for k, n in ((768, 768), (768, 3072), (3072, 768))
    ]
    rows.append(("matmul", MatMul(128, 64, 128, batch=12, constant=False)))
    rows.append(("matmul", MatMul(1, 2048, 1000, bias=True)))
    rows += [("resnet", op) for op in resnet50_convolutions()]
    rows += [
        ("depthwise" if op.depthwise else "pointwise", op) for op in mobilenet_v2_convolutions()
    ]
    rows.append(("rest", same_convolution(3, 64, 224, 7, 2)))
    rows += [("rest", op) for op in PLAIN]
    # Transposed convolutions: two of PP-OCR's detection head, and one with overlapping windows.
    two = (2, 2)
    rows.append(("rest", Convolution(24, 24, (80, 80), two, two, transposed=True)))
    rows.append(("rest", Convolution(24, 1, (160, 160), two, two, transposed=True)))
    four = Convolution(64, 32, (28, 28), (4, 4), two, (1, 1, 1, 1), transposed=True)
    return [*rows, ("rest", four)]
