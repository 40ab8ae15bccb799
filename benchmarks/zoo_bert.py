"""Generate BERT encoder layers with random weights, for benchmarks.

Latency does not depend on the values of the weights. Batch and sequence are dynamic.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from benchmarks.random_layers import RandomLayers


def _split_heads(
    layers: RandomLayers, value: str, name: str, heads: int, size: int, order: list[int]
) -> str:
    """(batch, sequence, heads * size) -> (batch, sequence, heads, size), transposed by `order`."""
    shape = layers.graph.constant("heads.shape", np.array([0, 0, heads, size], np.int64))
    split = layers.graph.node("Reshape", [value, shape], f"{name}.heads")
    return layers.graph.node("Transpose", [split], f"{name}.transposed", perm=order)


def _attention(layers: RandomLayers, value: str, name: str, hidden: int, heads: int) -> str:
    """Multi-head self-attention over `value` (batch, sequence, hidden) under `mask.bias`."""
    size = hidden // heads
    orders = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
    query, key, content = (
        _split_heads(
            layers,
            layers.linear(value, f"{name}.{part}", (hidden, hidden)),
            f"{name}.{part}",
            heads,
            size,
            order,
        )
        for part, order in orders.items()
    )
    node, constant = layers.graph.node, layers.graph.constant
    scores = node("MatMul", [query, key], f"{name}.scores")
    scale = constant("scale", np.float32(1 / math.sqrt(size)))
    masked = node(
        "Add", [node("Mul", [scores, scale], f"{name}.scaled"), "mask.bias"], f"{name}.masked"
    )
    weights = node("Softmax", [masked], f"{name}.softmax", axis=-1)
    mixed = node("MatMul", [weights, content], f"{name}.context")
    merged = node("Transpose", [mixed], f"{name}.context.transposed", perm=[0, 2, 1, 3])
    shape = constant("merged.shape", np.array([0, 0, hidden], np.int64))
    return layers.linear(
        node("Reshape", [merged, shape], f"{name}.merged"), f"{name}.output", (hidden, hidden)
    )


def _gelu(layers: RandomLayers, value: str) -> str:
    """Gelu, x / 2 * (1 + erf(x / sqrt(2))), as nodes, like exporters emit below opset 20."""
    node, constant = layers.graph.node, layers.graph.constant
    scaled = node(
        "Mul", [value, constant("gelu.sqrt_half", np.float32(math.sqrt(0.5)))], f"{value}.scaled"
    )
    erf = node("Erf", [scaled], f"{value}.erf")
    shifted = node("Add", [erf, constant("gelu.one", np.float32(1))], f"{value}.shifted")
    halved = node("Mul", [value, constant("gelu.half", np.float32(0.5))], f"{value}.halved")
    return node("Mul", [halved, shifted], f"{value}.gelu")


def bert_encoder(
    depth: int = 1, hidden: int = 768, heads: int = 12, feed_forward: int = 3072
) -> onnx.ModelProto:
    """Generate BERT encoder layers (post-norm) without embeddings.

    `hidden_states` (batch, sequence, hidden) and `attention_mask` (batch, sequence; 1 keeps,
    0 hides), both float32 -> `encoded` (batch, sequence, hidden).
    Devlin et al., "BERT" (2018); the defaults are one layer of BERT-base.

    Args:
        depth: Number of layers.
        hidden: Hidden size; a multiple of `heads`.
        heads: Number of attention heads.
        feed_forward: Size of the feed-forward layer.
    """
    layers = RandomLayers("bert_encoder")
    node, constant = layers.graph.node, layers.graph.constant
    axes = constant("mask.axes", np.array([1, 2], np.int64))
    mask = node("Unsqueeze", ["attention_mask", axes], "mask.unsqueezed")
    hidden_part = node("Sub", [constant("mask.one", np.float32(1)), mask], "mask.hidden")
    node("Mul", [hidden_part, constant("mask.lowest", np.float32(-1e4))], "mask.bias")
    value = "hidden_states"
    for index in range(depth):
        name = f"layer{index}"
        attended = _attention(layers, value, f"{name}.attention", hidden, heads)
        value = layers.layer_norm(
            node("Add", [attended, value], f"{name}.add1"), f"{name}.norm1", hidden
        )
        inner = _gelu(layers, layers.linear(value, f"{name}.up", (hidden, feed_forward)))
        outer = layers.linear(inner, f"{name}.down", (feed_forward, hidden))
        value = layers.layer_norm(
            node("Add", [outer, value], f"{name}.add2"), f"{name}.norm2", hidden
        )
    node("Identity", [value], "encoded")
    states = ("batch", "sequence", hidden)
    return layers.graph.model(
        {"hidden_states": states, "attention_mask": ("batch", "sequence")}, {"encoded": states}
    )
