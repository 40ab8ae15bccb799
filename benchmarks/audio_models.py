"""Write networks for audio and time series with random weights, for the benchmarks of CPUs.

Usage: ``python -m benchmarks.audio_models FOLDER``, then for example
``python -m benchmarks.cpu_int8 --threads 2 --model FOLDER/tcn.onnx``.

Latency does not depend on the values of the weights. Each network has the layers of a well-known
kind: 1-D and 2-D convolutions of one channel with long windows, dilated and causal convolutions,
gates, PReLU, transposed convolutions, a Fourier transform as a convolution.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.onnx_graph import GraphBuilder

INPUT = "x"


class Layers:
    """Append layers with random weights to a graph; each method returns the layer's output.

    Args:
        name: Name of the graph.
    """

    def __init__(self, name: str) -> None:
        self.graph = GraphBuilder(name)
        self._random = np.random.default_rng(0)
        self._count = 0

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node without weights."""
        self._count += 1
        return self.graph.node(kind, inputs, f"{kind.lower()}{self._count}", **attributes)

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """Add a constant."""
        self._count += 1
        return self.graph.constant(f"constant{self._count}", np.asarray(value, dtype))

    def normal(self, *shape: int, fan: int) -> str:
        """Add a random weight for ``fan`` inputs."""
        return self.constant(self._random.normal(0, np.sqrt(2 / fan), shape))

    def conv(
        self,
        x: str,
        channels: tuple[int, int],
        kernel: Sequence[int],
        *,
        strides: Sequence[int] = (),
        pads: Sequence[int] = (),
        dilation: int = 1,
        group: int = 1,
    ) -> str:
        """Add a convolution with bias; by default, the padding keeps the size of the input."""
        inputs, outputs = channels
        depth = inputs // group
        weight = self.normal(outputs, depth, *kernel, fan=depth * int(np.prod(kernel)))
        same = [(k - 1) * dilation // 2 for k in kernel]
        return self.op(
            "Conv",
            x,
            weight,
            self.normal(outputs, fan=800),
            kernel_shape=list(kernel),
            strides=list(strides or [1] * len(kernel)),
            pads=list(pads or same * 2),
            dilations=[dilation] * len(kernel),
            group=group,
        )

    def transposed(
        self, x: str, channels: tuple[int, int], kernel: int, stride: int, pad: int
    ) -> str:
        """Add a transposed 1-D convolution with bias."""
        weight = self.normal(*channels, kernel, fan=channels[0] * kernel // stride)
        bias = self.normal(channels[1], fan=800)
        fields = {"kernel_shape": [kernel], "strides": [stride], "pads": [pad, pad]}
        return self.op("ConvTranspose", x, weight, bias, **fields)

    def half(self, x: str, channels: int, second: bool) -> str:
        """Add a slice of the first or second ``channels`` channels."""
        begin = channels if second else 0
        ends = (self.constant([v], "int64") for v in (begin, begin + channels, 1))
        return self.op("Slice", x, *ends)

    def gate(self, x: str, channels: int, activation: str = "") -> str:
        """Add a gate of the first half of the channels by the second."""
        value = self.half(x, channels, False)
        value = self.op(activation, value) if activation else value
        return self.op("Mul", value, self.op("Sigmoid", self.half(x, channels, True)))

    def pool(self, x: str, kind: str, kernel: Sequence[int]) -> str:
        """Add a pooling with a stride of the kernel."""
        return self.op(kind, x, kernel_shape=list(kernel), strides=list(kernel))

    def classifier(self, x: str, features: int, classes: int) -> str:
        """Add a linear layer on a vector."""
        weight = self.normal(features, classes, fan=features)
        return self.op("Gemm", x, weight, self.constant(np.zeros(classes)))

    def model(self, result: str, shape: Sequence[int], out: Sequence[int]) -> onnx.ModelProto:
        """Return the model with input and output shape."""
        return self.graph.model({INPUT: shape}, {result: out})


def m5() -> onnx.ModelProto:
    """Raw audio classification: a window of 80 samples, then four pooled convolutions."""
    layers = Layers("m5")
    x = layers.op("Relu", layers.conv(INPUT, (1, 64), [80], strides=[4], pads=[0, 0]))
    x = layers.pool(x, "MaxPool", [4])
    for channels in ((64, 64), (64, 128), (128, 256)):
        x = layers.pool(layers.op("Relu", layers.conv(x, channels, [3])), "MaxPool", [4])
    x = layers.op("ReduceMean", x, axes=[2], keepdims=0)
    return layers.model(layers.classifier(x, 256, 35), [1, 1, 16000], [1, 35])


def tcn() -> onnx.ModelProto:
    """Temporal convolutional network: dilated causal convolutions with residuals."""
    layers = Layers("tcn")
    x = layers.conv(INPUT, (40, 128), [1])
    for block in range(6):
        cut, y = 2 * 2**block, x
        for _ in range(2):
            y = layers.conv(y, (128, 128), [3], dilation=2**block, pads=[cut, cut])
            ends = (layers.constant([v], "int64") for v in (0, -cut, 2))
            y = layers.op("Relu", layers.op("Slice", y, *ends))
        x = layers.op("Relu", layers.op("Add", x, y))
    return layers.model(layers.conv(x, (128, 12), [1]), [1, 40, 400], [1, 12, 400])


def tasnet() -> onnx.ModelProto:
    """Speech separation: encoder, depthwise blocks with PReLU, mask, decoder."""
    layers = Layers("tasnet")
    encoded = layers.op("Relu", layers.conv(INPUT, (1, 256), [16], strides=[8], pads=[0, 0]))
    x = layers.conv(encoded, (256, 128), [1])
    for block in range(6):
        y = layers.op("PRelu", layers.conv(x, (128, 256), [1]), layers.constant([[0.25]]))
        y = layers.conv(y, (256, 256), [3], dilation=2**block, group=256)
        y = layers.op("PRelu", y, layers.constant([[0.25]]))
        x = layers.op("Add", x, layers.conv(y, (256, 128), [1]))
    mask = layers.op("Sigmoid", layers.conv(x, (128, 256), [1]))
    x = layers.transposed(layers.op("Mul", mask, encoded), (256, 1), 16, 8, 0)
    return layers.model(x, [1, 1, 16000], [1, 1, 16000])


def wav2vec() -> onnx.ModelProto:
    """Feature encoder of raw speech: strided convolutions with GELU."""
    layers = Layers("wav2vec")
    x, channels = INPUT, 1
    for kernel, stride in ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)):
        x = layers.conv(x, (channels, 256), [kernel], strides=[stride], pads=[0, 0])
        error = layers.op("Erf", layers.op("Div", x, layers.constant(np.sqrt(2))))
        x = layers.op("Mul", x, layers.op("Add", error, layers.constant(1.0)))
        x = layers.op("Mul", x, layers.constant(0.5))
        channels = 256
    return layers.model(x, [1, 1, 16000], [1, 256, 49])


def demucs() -> onnx.ModelProto:
    """Music separation: a U-Net of gated and transposed convolutions."""
    layers = Layers("demucs")
    x, channels, skips = INPUT, 2, []
    for outputs in (32, 64, 128):
        x = layers.op("Relu", layers.conv(x, (channels, outputs), [8], strides=[4], pads=[2, 2]))
        x = layers.gate(layers.conv(x, (outputs, 2 * outputs), [1]), outputs)
        skips.append(x)
        channels = outputs
    for outputs in (64, 32, 4):
        x = layers.op("Add", x, skips.pop())
        x = layers.gate(layers.conv(x, (channels, 2 * channels), [3]), channels)
        x = layers.transposed(x, (channels, outputs), 8, 4, 2)
        x = layers.op("Relu", x) if skips else x
        channels = outputs
    return layers.model(x, [1, 2, 8192], [1, 4, 8192])


def ecg() -> onnx.ModelProto:
    """Residual network on twelve leads."""
    layers = Layers("ecg")
    x = layers.op("Relu", layers.conv(INPUT, (12, 64), [15], strides=[2]))
    x = layers.op("MaxPool", x, kernel_shape=[3], strides=[2], pads=[1, 1])
    channels = 64
    for outputs, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        y = layers.op("Relu", layers.conv(x, (channels, outputs), [7], strides=[stride]))
        y = layers.conv(y, (outputs, outputs), [7])
        if outputs != channels:
            x = layers.conv(x, (channels, outputs), [1], strides=[stride])
        x = layers.op("Relu", layers.op("Add", x, y))
        channels = outputs
    x = layers.op("Flatten", layers.op("GlobalAveragePool", x))
    return layers.model(layers.classifier(x, 256, 9), [1, 12, 1000], [1, 9])


def yamnet() -> onnx.ModelProto:
    """Sound events of a spectrogram: depthwise separable convolutions, 521 classes."""
    layers = Layers("yamnet")
    x = layers.conv(INPUT, (1, 32), [3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    x, channels = layers.op("Relu", x), 32
    strided = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))
    for outputs, stride in strided:
        x = layers.conv(x, (channels, channels), [3, 3], strides=[stride] * 2, group=channels)
        x = layers.op("Relu", layers.conv(layers.op("Relu", x), (channels, outputs), [1, 1]))
        channels = outputs
    x = layers.op("Flatten", layers.op("GlobalAveragePool", x))
    x = layers.op("Sigmoid", layers.classifier(x, 512, 521))
    return layers.model(x, [1, 1, 96, 64], [1, 521])


def fourier() -> onnx.ModelProto:
    """Magnitudes of a Fourier transform by two convolutions, then three on the spectrogram."""
    layers = Layers("fourier")
    window: dict[str, Any] = {"strides": [1, 160], "pads": [0] * 4}
    parts = [layers.conv(INPUT, (1, 257), [1, 512], **window) for _ in range(2)]
    power = layers.op("Add", *(layers.op("Mul", part, part) for part in parts))
    x = layers.op("Sqrt", layers.op("Add", power, layers.constant(1e-6)))
    x = layers.op("Transpose", x, perm=[0, 2, 1, 3])
    for channels in ((1, 32), (32, 32), (32, 64)):
        x = layers.op("LeakyRelu", layers.conv(x, channels, [3, 3], strides=[2, 1]), alpha=0.1)
    x = layers.op("Sigmoid", layers.conv(x, (64, 8), [1, 1]))
    return layers.model(x, [1, 1, 1, 16000], [1, 8, 33, 97])


def wavenet() -> onnx.ModelProto:
    """Dilated causal convolutions with gates of tanh and sigmoid, and skip connections."""
    layers = Layers("wavenet")
    x, skips = layers.conv(INPUT, (1, 64), [1]), []
    for block in range(6):
        y = layers.conv(x, (64, 128), [2], dilation=2**block, pads=[2**block, 0])
        y = layers.gate(y, 64, "Tanh")
        skips.append(layers.conv(y, (64, 64), [1]))
        x = layers.op("Add", x, layers.conv(y, (64, 64), [1]))
    x = layers.op("Relu", layers.op("Sum", *skips))
    return layers.model(layers.conv(x, (64, 32), [1]), [1, 1, 8000], [1, 32, 8000])


def sincnet() -> onnx.ModelProto:
    """Speaker recognition: windows of 251 samples with stride 1."""
    layers = Layers("sincnet")
    x = layers.op("Abs", layers.conv(INPUT, (1, 80), [251], pads=[0, 0]))
    x = layers.pool(x, "MaxPool", [3])
    for channels in ((80, 60), (60, 60)):
        x = layers.op("LeakyRelu", layers.conv(x, channels, [5], pads=[0, 0]), alpha=0.2)
        x = layers.pool(x, "MaxPool", [3])
    x = layers.op("ReduceMean", x, axes=[2], keepdims=0)
    return layers.model(layers.classifier(x, 60, 20), [1, 1, 8000], [1, 20])


def eeg() -> onnx.ModelProto:
    """Electrodes by time: kernels of one column, a depthwise one over all electrodes."""
    layers = Layers("eeg")
    x = layers.conv(INPUT, (1, 16), [64, 1])
    x = layers.op("Elu", layers.conv(x, (16, 32), [1, 16], pads=[0] * 4, group=16))
    x = layers.pool(x, "AveragePool", [4, 1])
    x = layers.conv(layers.conv(x, (32, 32), [16, 1], group=32), (32, 32), [1, 1])
    x = layers.op("Flatten", layers.pool(layers.op("Elu", x), "AveragePool", [8, 1]))
    return layers.model(layers.classifier(x, 480, 4), [1, 1, 512, 16], [1, 4])


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    make.__name__: make
    for make in (
        m5, tcn, tasnet, wav2vec, demucs, ecg, yamnet, fourier, wavenet, sincnet, eeg,
    )
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audio_models")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in MODELS.items():
        onnx.save(make(), str(folder / f"{name}.onnx"))
        print(folder / f"{name}.onnx")
    return 0


if __name__ == "__main__":
    sys.exit(main())
