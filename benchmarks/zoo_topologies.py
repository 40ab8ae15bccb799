"""Generate well-known image topologies with random weights, for benchmarks.

Latency does not depend on the values of the weights. The leading dimension is dynamic.
"""

from __future__ import annotations

import math

import onnx

from benchmarks.random_layers import RandomLayers

RESIDUAL_GAIN = 0.5  # scale of the last batch norm in a residual branch, against growth with depth


def _basic_block(
    layers: RandomLayers, value: str, name: str, channels: tuple[int, int], stride: int
) -> str:
    """Add a block of two 3x3 convolutions and a shortcut (ResNet-18)."""
    in_channels, out_channels = channels
    branch = layers.relu(layers.conv_bn(value, f"{name}.conv1", channels, 3, stride))
    branch = layers.conv_bn(
        branch, f"{name}.conv2", (out_channels, out_channels), 3, gain=RESIDUAL_GAIN
    )
    if stride != 1 or in_channels != out_channels:
        value = layers.conv_bn(value, f"{name}.shortcut", channels, 1, stride, gain=math.sqrt(0.5))
    return layers.relu(layers.graph.node("Add", [branch, value], f"{name}.add"))


def _bottleneck_block(
    layers: RandomLayers, value: str, name: str, channels: tuple[int, int], stride: int
) -> str:
    """Add a block of 1x1, 3x3 (strided, as in v1.5), 1x1 and a shortcut (ResNet-50)."""
    in_channels, out_channels = channels
    width = out_channels // 4
    branch = layers.relu(layers.conv_bn(value, f"{name}.conv1", (in_channels, width), 1))
    branch = layers.relu(layers.conv_bn(branch, f"{name}.conv2", (width, width), 3, stride))
    branch = layers.conv_bn(branch, f"{name}.conv3", (width, out_channels), 1, gain=RESIDUAL_GAIN)
    if stride != 1 or in_channels != out_channels:
        value = layers.conv_bn(value, f"{name}.shortcut", channels, 1, stride, gain=math.sqrt(0.5))
    return layers.relu(layers.graph.node("Add", [branch, value], f"{name}.add"))


def resnet(
    depths: tuple[int, ...],
    bottleneck: bool,
    image_size: int = 224,
    classes: int = 1000,
    width: int = 64,
) -> onnx.ModelProto:
    """Generate ResNet v1.5: `image` (batch, 3, size, size) -> `logits` (batch, classes).

    He et al., "Deep Residual Learning" (2015). ResNet-18 is (2, 2, 2, 2) without bottlenecks,
    ResNet-50 is (3, 4, 6, 3) with them.

    Args:
        depths: Blocks per stage; each stage after the first halves the image and doubles the width.
        bottleneck: Whether blocks are bottlenecks with four times the width.
        image_size: Height and width of the image, in pixels.
        classes: Number of logits.
        width: Channels of the stem.
    """
    layers = RandomLayers("resnet")
    value = layers.relu(layers.conv_bn("image", "stem", (3, width), 7, stride=2))
    value = layers.graph.node(
        "MaxPool", [value], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    )
    channels, block = width, _bottleneck_block if bottleneck else _basic_block
    for stage, depth in enumerate(depths):
        out_channels = width * 2**stage * (4 if bottleneck else 1)
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            value = block(
                layers, value, f"stage{stage + 1}.{index}", (channels, out_channels), stride
            )
            channels = out_channels
    layers.classifier(value, channels, classes)
    return layers.graph.model(
        {"image": ("batch", 3, image_size, image_size)}, {"logits": ("batch", classes)}
    )


MOBILENET_V2_STAGES = (  # expansion, channels, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _inverted_residual(
    layers: RandomLayers,
    value: str,
    name: str,
    channels: tuple[int, int],
    expansion: int,
    stride: int,
) -> str:
    """Add a block of 1x1 expansion, depthwise 3x3, linear 1x1, and a shortcut if shapes match."""
    in_channels, out_channels = channels
    hidden, branch = in_channels * expansion, value
    if expansion != 1:
        branch = layers.relu6(layers.conv_bn(branch, f"{name}.expand", (in_channels, hidden), 1))
    branch = layers.relu6(
        layers.conv_bn(branch, f"{name}.depthwise", (hidden, hidden), 3, stride, groups=hidden)
    )
    branch = layers.conv_bn(
        branch, f"{name}.project", (hidden, out_channels), 1, gain=RESIDUAL_GAIN
    )
    if stride != 1 or in_channels != out_channels:
        return branch
    return layers.graph.node("Add", [branch, value], f"{name}.add")


def mobilenet_v2(
    stages: tuple[tuple[int, int, int, int], ...] = MOBILENET_V2_STAGES,
    image_size: int = 224,
    classes: int = 1000,
    head: int = 1280,
) -> onnx.ModelProto:
    """Generate MobileNetV2: `image` (batch, 3, size, size) -> `logits` (batch, classes).

    Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018), table 2.
    """
    layers = RandomLayers("mobilenet_v2")
    value = layers.relu6(layers.conv_bn("image", "stem", (3, 32), 3, stride=2))
    channels = 32
    for stage, (expansion, out_channels, depth, first_stride) in enumerate(stages):
        for index in range(depth):
            stride = first_stride if index == 0 else 1
            name = f"stage{stage + 1}.{index}"
            value = _inverted_residual(
                layers, value, name, (channels, out_channels), expansion, stride
            )
            channels = out_channels
    value = layers.relu6(layers.conv_bn(value, "head", (channels, head), 1))
    layers.classifier(value, head, classes)
    return layers.graph.model(
        {"image": ("batch", 3, image_size, image_size)}, {"logits": ("batch", classes)}
    )


def mlp(
    image_shape: tuple[int, ...] = (224, 224, 3),
    hidden: tuple[int, ...] = (128, 64),
    classes: int = 1000,
) -> onnx.ModelProto:
    """Generate an MLP: `image` (batch, *image_shape) -> `probabilities` (batch, classes).

    The layers follow TVM's `relay.testing.mlp`.
    """
    layers = RandomLayers("mlp")
    value, features = layers.graph.node("Flatten", ["image"], "flatten"), math.prod(image_shape)
    for index, size in enumerate(hidden):
        value = layers.relu(layers.gemm(value, f"fc{index + 1}", (features, size)))
        features = size
    logits = layers.gemm(value, f"fc{len(hidden) + 1}", (features, classes))
    layers.graph.node("Softmax", [logits], "probabilities", axis=-1)
    return layers.graph.model(
        {"image": ("batch", *image_shape)}, {"probabilities": ("batch", classes)}
    )
