"""Neural-network layers with random parameters, as ONNX nodes.

Weights are He-initialised from a fixed seed and batch-norm statistics are near (0, 1), so that
activations neither vanish nor overflow, and lower precisions are comparable. BatchNormalization
stays a node, because folding it is the compiler's work.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.onnx_graph import GraphBuilder

SEED = 20260101


class RandomLayers:
    """Layers with random parameters; each method adds nodes and returns the output's name."""

    def __init__(self, name: str) -> None:
        self.graph = GraphBuilder(name)
        self._random = np.random.default_rng(SEED)

    def he_normal(self, name: str, shape: tuple[int, ...], fan_in: int) -> str:
        """Constant from N(0, 2 / fan_in): He et al., "Delving Deep into Rectifiers" (2015)."""
        values = self._random.standard_normal(shape, np.float32) * np.float32(math.sqrt(2 / fan_in))
        return self.graph.constant(name, values)

    def uniform(self, name: str, size: int, low: float, high: float) -> str:
        """Constant vector of `size` values between `low` and `high`."""
        return self.graph.constant(name, self._random.uniform(low, high, size).astype(np.float32))

    def conv_bn(
        self,
        value: str,
        name: str,
        channels: tuple[int, int],
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        gain: float = 1.0,
    ) -> str:
        """Conv without bias (padding kernel // 2) and BatchNormalization; channels = (in, out)."""
        in_channels, out_channels = channels
        shape = (out_channels, in_channels // groups, kernel, kernel)
        weight = self.he_normal(f"{name}.weight", shape, fan_in=math.prod(shape[1:]))
        convolved = self.graph.node(
            "Conv",
            [value, weight],
            name,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=groups,
        )
        statistics = [
            self.uniform(f"{name}.bn.weight", out_channels, 0.9 * gain, 1.1 * gain),
            self.uniform(f"{name}.bn.bias", out_channels, -0.1, 0.1),
            self.uniform(f"{name}.bn.mean", out_channels, -0.1, 0.1),
            self.uniform(f"{name}.bn.var", out_channels, 0.8, 1.2),
        ]
        return self.graph.node(
            "BatchNormalization", [convolved, *statistics], f"{name}.bn", epsilon=1e-5
        )

    def relu(self, value: str) -> str:
        """Relu, named after its input."""
        return self.graph.node("Relu", [value], f"{value}.relu")

    def relu6(self, value: str) -> str:
        """Clip to 0..6, named after its input."""
        bounds = [
            self.graph.constant("relu6.min", np.float32(0)),
            self.graph.constant("relu6.max", np.float32(6)),
        ]
        return self.graph.node("Clip", [value, *bounds], f"{value}.relu6")

    def gemm(self, value: str, name: str, features: tuple[int, int], output: str = "") -> str:
        """Fully connected layer, (batch, in) -> (batch, out); features = (in, out)."""
        in_features, out_features = features
        weight = self.he_normal(f"{name}.weight", (out_features, in_features), fan_in=in_features)
        bias = self.uniform(f"{name}.bias", out_features, -0.1, 0.1)
        return self.graph.node("Gemm", [value, weight, bias], name, output, transB=1)

    def linear(self, value: str, name: str, features: tuple[int, int]) -> str:
        """MatMul and Add, (..., in) -> (..., out), as PyTorch exports a Linear on 3-D inputs."""
        in_features, out_features = features
        weight = self.he_normal(
            f"{name}.weight", (in_features, out_features), fan_in=2 * in_features
        )
        bias = self.uniform(f"{name}.bias", out_features, -0.1, 0.1)
        matmul = self.graph.node("MatMul", [value, weight], f"{name}.matmul")
        return self.graph.node("Add", [matmul, bias], name)

    def classifier(self, value: str, channels: int, classes: int) -> str:
        """Global average pool and fully connected layer: (batch, c, h, w) -> (batch, classes)."""
        pooled = self.graph.node("GlobalAveragePool", [value], "pool")
        flat = self.graph.node("Flatten", [pooled], "flatten")
        return self.gemm(flat, "fc", (channels, classes), "logits")

    def layer_norm(self, value: str, name: str, size: int) -> str:
        """LayerNormalization over the last axis."""
        scale = self.uniform(f"{name}.weight", size, 0.9, 1.1)
        bias = self.uniform(f"{name}.bias", size, -0.1, 0.1)
        return self.graph.node(
            "LayerNormalization", [value, scale, bias], name, axis=-1, epsilon=1e-12
        )
