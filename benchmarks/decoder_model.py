"""ONNX models of a decoder step as exporters write them: Llama's layer, one new token, a KV cache.

Each linear layer is a ``MatMul``, or a ``MatMulNBits`` with symmetric blocks along K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.decoder_sizes import DecoderSizes

_EPSILON = 1e-5


#: Returns the initializers of a linear layer by suffix: ``{"w": (K, N)}`` for ``MatMul``; for
#: ``MatMulNBits`` ``"b"`` (N, blocks, block bytes), ``"s"`` (N, blocks), optionally ``"z"``.
LinearWeights = Callable[[str, int, int], dict[str, np.ndarray]]


def decoder_step(
    sizes: DecoderSizes, weights: LinearWeights, bits: int = 4, dtype: str = "float16"
) -> onnx.ModelProto:
    """Return the model of one step.

    Inputs are ``x`` (1, 1, hidden), ``position`` (1, 1) and for each layer the cached ``past_k``
    and ``past_v`` (1, kv_heads, past, head_size); outputs are ``y`` and the longer caches.

    Args:
        sizes: The sizes.
        weights: The weights of the linear layers.
        bits: Bits of a weight in ``MatMulNBits``.
        dtype: dtype of activations.
    """
    graph = _Graph(sizes, weights, bits, dtype)
    x = "x"
    cos, sin = graph.rotary_tables()
    for layer in range(sizes.layers):
        x = graph.layer(str(layer), x, cos, sin)
    graph.add("Identity", [x], "y")
    return graph.model()


class _Graph:
    def __init__(self, sizes: DecoderSizes, weights: LinearWeights, bits: int, dtype: str) -> None:
        self.sizes, self.weights, self.bits = sizes, weights, bits
        self.dtype = np.dtype(dtype)
        self.kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        cache = (1, sizes.kv_heads, sizes.past, sizes.head_size)
        longer = (1, sizes.kv_heads, sizes.past + 1, sizes.head_size)
        names = [f"{one}.{layer}" for layer in range(sizes.layers) for one in "kv"]
        self.inputs = {"x": (1, 1, sizes.hidden), **{f"past_{n}": cache for n in names}}
        self.outputs = {"y": (1, 1, sizes.hidden), **{f"present_{n}": longer for n in names}}

    def model(self) -> onnx.ModelProto:
        """Return the model of all nodes."""
        position = helper.make_tensor_value_info("position", TensorProto.INT64, [1, 1])
        given = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "decoder",
            [position, *(given(n, self.kind, s) for n, s in self.inputs.items())],
            [given(n, self.kind, s) for n, s in self.outputs.items()],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def add(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Append a node with the output ``name``; return ``name``."""
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def constant(self, name: str, value: Any, dtype: str | None = None) -> str:
        """Return the name of a constant."""
        self.constants[name] = np.asarray(value, dtype or self.dtype)
        return name

    def rotary_tables(self) -> tuple[str, str]:
        """Return the rows of the cosine and sine tables for the position."""
        size, length = self.sizes.head_size, self.sizes.past + 1
        frequency = 10000.0 ** (-np.arange(0, size, 2) / size)
        angle = np.arange(length)[:, None] * np.concatenate([frequency, frequency])
        for name, values in (("cos", np.cos(angle)), ("sin", np.sin(angle))):
            row = self.add("Gather", [self.constant(f"{name}.table", values), "position"],
                           f"{name}.row", axis=0)  # fmt: skip
            self.add("Unsqueeze", [row, self.constant("one", [1], "int64")], name)
        return "cos", "sin"

    def layer(self, at: str, x: str, cos: str, sin: str) -> str:
        """Append a layer; return its output."""
        sizes = self.sizes
        normed = self.rms_norm(f"{at}.norm1", x)
        q = self.heads(f"{at}.q", normed, sizes.heads)
        k = self.heads(f"{at}.k", normed, sizes.kv_heads)
        v = self.heads(f"{at}.v", normed, sizes.kv_heads)
        q, k = (self.rotary(name, cos, sin) for name in (q, k))
        k = self.add("Concat", [f"past_k.{at}", k], f"present_k.{at}", axis=2)
        v = self.add("Concat", [f"past_v.{at}", v], f"present_v.{at}", axis=2)
        o = self.attention(at, q, self.repeated(k), self.repeated(v))
        x = self.add("Add", [x, self.linear(f"{at}.o", o)], f"{at}.residual1")
        normed = self.rms_norm(f"{at}.norm2", x)
        gate, up = (self.linear(f"{at}.{name}", normed) for name in ("gate", "up"))
        sigmoid = self.add("Sigmoid", [gate], f"{at}.sigmoid")
        silu = self.add("Mul", [gate, sigmoid], f"{at}.silu")
        down = self.linear(f"{at}.down", self.add("Mul", [silu, up], f"{at}.gated"))
        return self.add("Add", [x, down], f"{at}.residual2")

    def rms_norm(self, name: str, x: str) -> str:
        """Append RMSNorm in float32, whose weight is 1 + index / 1000 of the hidden state."""
        wide = self.add("Cast", [x], f"{name}.wide", to=TensorProto.FLOAT)
        two = self.constant("two", 2, "float32")
        square = self.add("Pow", [wide, two], f"{name}.square")
        mean = self.add("ReduceMean", [square], f"{name}.mean", axes=[-1])
        shifted = self.add("Add", [mean, self.constant("eps", _EPSILON, "float32")], f"{name}.eps")
        root = self.add("Sqrt", [shifted], f"{name}.sqrt")
        normed = self.add("Div", [wide, root], f"{name}.div")
        narrow = self.add("Cast", [normed], f"{name}.narrow", to=self.kind)
        weight = 1 + np.arange(self.sizes.hidden) % 7 / 8
        return self.add("Mul", [self.constant(f"{name}.weight", weight), narrow], f"{name}.out")

    def linear(self, name: str, x: str) -> str:
        """Append a linear layer."""
        depth, rows = self.sizes.linears()[name]
        given = self.weights(name, depth, rows)
        self.constants.update({f"{name}.{suffix}": value for suffix, value in given.items()})
        if "w" in given:
            return self.add("MatMul", [x, f"{name}.w"], f"{name}.out")
        inputs = [x, f"{name}.b", f"{name}.s", *([f"{name}.z"] if "z" in given else [])]
        block = -(-given["b"].shape[2] * 8 // self.bits)
        return self.add(
            "MatMulNBits", inputs, f"{name}.out", domain="com.microsoft",
            K=depth, N=rows, bits=self.bits, block_size=block,
        )  # fmt: skip

    def heads(self, name: str, x: str, heads: int) -> str:
        """Append a linear layer whose output is split into heads, (1, heads, 1, head_size)."""
        shape = self.constant(f"{name}.shape", [1, 1, heads, self.sizes.head_size], "int64")
        split = self.add("Reshape", [self.linear(name, x), shape], f"{name}.split")
        return self.add("Transpose", [split], f"{name}.heads", perm=[0, 2, 1, 3])

    def rotary(self, x: str, cos: str, sin: str) -> str:
        """Append the rotary embedding of a head: its halves rotate together."""
        half = self.sizes.head_size // 2
        cuts = [self.constant(f"cut{at}", [at], "int64") for at in (0, half, 2 * half)]
        last = self.constant("last", [3], "int64")
        first = self.add("Slice", [x, cuts[0], cuts[1], last], f"{x}.first")
        second = self.add("Slice", [x, cuts[1], cuts[2], last], f"{x}.second")
        negated = self.add("Neg", [second], f"{x}.neg")
        rotated = self.add("Concat", [negated, first], f"{x}.rotated", axis=3)
        one = self.add("Mul", [x, cos], f"{x}.cos")
        two = self.add("Mul", [rotated, sin], f"{x}.sin")
        return self.add("Add", [one, two], f"{x}.rotary")

    def repeated(self, x: str) -> str:
        """Append the repetition of each head of a cache for the heads of Q that share it."""
        sizes = self.sizes
        shared, length = sizes.heads // sizes.kv_heads, sizes.past + 1
        if shared == 1:
            return x
        axes = self.constant("two.axis", [2], "int64")
        wide = [1, sizes.kv_heads, shared, length, sizes.head_size]
        flat = [1, sizes.heads, length, sizes.head_size]
        deep = self.add("Unsqueeze", [x, axes], f"{x}.deep")
        deep = self.add("Expand", [deep, self.constant("wide", wide, "int64")], f"{x}.expanded")
        return self.add("Reshape", [deep, self.constant("flat", flat, "int64")], f"{x}.repeated")

    def attention(self, at: str, q: str, k: str, v: str) -> str:
        """Append attention with softmax in float32; return (1, 1, heads * head_size)."""
        size = self.sizes.heads * self.sizes.head_size
        transposed = self.add("Transpose", [k], f"{at}.kt", perm=[0, 1, 3, 2])
        scores = self.add("MatMul", [q, transposed], f"{at}.scores")
        factor = self.constant("factor", self.sizes.head_size**-0.5)
        scaled = self.add("Mul", [scores, factor], f"{at}.scaled")
        wide = self.add("Cast", [scaled], f"{at}.scores.wide", to=TensorProto.FLOAT)
        soft = self.add("Softmax", [wide], f"{at}.softmax", axis=-1)
        narrow = self.add("Cast", [soft], f"{at}.weights", to=self.kind)
        mixed = self.add("MatMul", [narrow, v], f"{at}.mixed")
        joined = self.add("Transpose", [mixed], f"{at}.joined", perm=[0, 2, 1, 3])
        shape = self.constant("joined.shape", [1, 1, size], "int64")
        return self.add("Reshape", [joined, shape], f"{at}.attention")
