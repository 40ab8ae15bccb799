"""Weights of the decoder benchmark, and a float32 reference of the step in NumPy.

The 4-bit values repeat with a prime period, so that compiled constants, whatever their layout,
compress to a few hundred kilobytes and can travel to the machine with the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.decoder_sizes import DecoderSizes

_PERIOD = 1021
# Scales are powers of two, so that float16 holds every dequantised weight exactly.
_SCALES = 2.0 ** np.array([-8, -9, -8, -7, -9], "float32")
_EPSILON = 1e-5


def values_of(name: str, depth: int, rows: int) -> np.ndarray:
    """Return the 4-bit values of a linear layer, uint8 (N, K)."""
    seed = sum(ord(letter) << (at % 3 * 8) for at, letter in enumerate(name))
    pattern = np.random.default_rng(seed).integers(0, 16, _PERIOD, dtype="uint8")
    return np.resize(pattern, (rows, depth))


def scales_of(depth: int, rows: int, block: int) -> np.ndarray:
    """Return the scales of a linear layer, float32 (N, blocks)."""
    return np.resize(_SCALES, (rows, depth // block))


def dense_weight(name: str, depth: int, rows: int, block: int) -> np.ndarray:
    """Return the dequantised weight, float16 (K, N)."""
    scales = scales_of(depth, rows, block).astype("float16")[..., None]
    weight = values_of(name, depth, rows).reshape(rows, -1, block).astype("float16")
    weight -= np.float16(8)
    weight *= scales
    return np.ascontiguousarray(weight.reshape(rows, depth).T)


def packed_weight(name: str, depth: int, rows: int, block: int) -> dict[str, np.ndarray]:
    """Return the weight as the inputs of ``MatMulNBits`` with 4 bits."""
    values = values_of(name, depth, rows).reshape(rows, -1, block)
    packed = values[..., ::2] | values[..., 1::2] << 4
    return {"b": packed, "s": scales_of(depth, rows, block).astype("float16")}


def inputs_of(sizes: DecoderSizes) -> dict[str, np.ndarray]:
    """Return the inputs of the step, by name in the model's order."""
    rng = np.random.default_rng(0)
    cache = (1, sizes.kv_heads, sizes.past, sizes.head_size)
    inputs = {
        "position": np.array([[sizes.past]]),
        "x": rng.standard_normal((1, 1, sizes.hidden), "float32").astype("float16"),
    }
    for layer in range(sizes.layers):
        for one in "kv":
            drawn = rng.standard_normal(cache, "float32")
            inputs[f"past_{one}.{layer}"] = drawn.astype("float16")
    return inputs


def reference(sizes: DecoderSizes, inputs: Mapping[str, np.ndarray], block: int) -> np.ndarray:
    """Return the step's ``y`` (hidden,), computed in float32 from the dequantised weights."""
    x = inputs["x"].astype("float32").reshape(-1)

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        depth, rows = sizes.linears()[name]
        return x @ dense_weight(name, depth, rows, block).astype("float32")

    def norm(x: np.ndarray) -> np.ndarray:
        weight = 1 + np.arange(sizes.hidden) % 7 / 8
        return (x / np.sqrt(np.mean(x * x) + _EPSILON) * weight).astype("float32")

    def rotary(x: np.ndarray) -> np.ndarray:
        first, second = np.split(x, 2, axis=-1)
        steps = np.arange(0, sizes.head_size, 2) / sizes.head_size
        angle = sizes.past * 10000.0**-steps
        cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    for at in range(sizes.layers):
        normed = norm(x)
        q, k, v = (linear(f"{at}.{n}", normed).reshape(-1, sizes.head_size) for n in "qkv")
        new = {"k": rotary(k), "v": v}
        cache = {
            one: np.concatenate(
                [inputs[f"past_{one}.{at}"][0].astype("float32"), new[one][:, None]], 1
            ).repeat(sizes.heads // sizes.kv_heads, 0)
            for one in "kv"
        }
        scores = np.einsum("hd,hkd->hk", rotary(q), cache["k"]) * sizes.head_size**-0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + linear(f"{at}.o", np.einsum("hk,hkd->hd", weights, cache["v"]).reshape(-1))
        normed = norm(x)
        gate, up = linear(f"{at}.gate", normed), linear(f"{at}.up", normed)
        x = x + linear(f"{at}.down", gate / (1 + np.exp(-gate)) * up)
    return x


def write_constants(path: Path, arrays: Sequence[np.ndarray]) -> None:
    """Write arrays, compressed, as an ``.npz`` file."""
    named: dict[str, Any] = {f"{number}": array for number, array in enumerate(arrays)}
    np.savez_compressed(path, allow_pickle=False, **named)


def read_constants(path: Path) -> list[np.ndarray]:
    """Return the arrays of :func:`write_constants`, in order."""
    with np.load(path, allow_pickle=False) as stored:
        return [stored[f"{number}"] for number in range(len(stored.files))]
