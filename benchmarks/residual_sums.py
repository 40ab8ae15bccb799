"""Errors of encoders whose residual sums are stored in 16 bits or in float32, in NumPy.

Usage: ``python -m benchmarks.residual_sums [--layers N] [--hidden H] [--length S]``

Rounds every tensor that a GPU stores, and computes in float32 between. Weights are random. Ways to
store the sums: ``float32``; ``16 bits``, rounded once (``narrow_norms`` of ``convert_module``);
``PyTorch``, which rounds the result of each matmul before the sum, too.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
from scipy.special import erf

from benchmarks.report import markdown

_DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_WAYS = ("float32", "16 bits", "PyTorch")
_Round = Callable[[np.ndarray], np.ndarray]
_Matmuls = Iterator[tuple[np.ndarray, np.ndarray]]


def _rounding(dtype: str) -> _Round:
    return lambda x: x.astype(_DTYPES[dtype]).astype(np.float32)


def _exact(x: np.ndarray) -> np.ndarray:
    return x


def _norm(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(1e-6))


class Encoder:
    """An encoder of random weights, as of ``cuda_networks``.

    Args:
        layers: Layers.
        hidden: Width; heads have 64 elements.
        norm_first: Whether a LayerNorm comes before each part (ViT) or after it (BERT).
    """

    def __init__(self, layers: int, hidden: int, norm_first: bool) -> None:
        rng = np.random.default_rng(0)
        self._hidden, self._norm_first = hidden, norm_first
        sizes = [(hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden)]
        self._layers = [
            [
                (
                    (rng.normal(size=size) * 0.7 * math.sqrt(2 / size[0])).astype(np.float32),
                    rng.normal(0, 0.1, size[1]).astype(np.float32),
                )
                for size in sizes
            ]
            for _ in range(layers)
        ]

    def run(self, x: np.ndarray, dtype: str = "", way: str = "float32") -> np.ndarray:
        """Return the normalised output for (length, hidden); in float32 without a dtype."""
        low = _rounding(dtype) if dtype else _exact
        self._low, stored = low, _exact if way == "float32" else low
        part = low if way == "PyTorch" else _exact
        x = stored(x) if self._norm_first else low(_norm(x))
        for layer in self._layers:
            matmuls = iter(layer)
            for compute in (self._attention, self._mlp):
                y = low(_norm(x)) if self._norm_first else x
                x = stored(x + part(compute(y, matmuls)))
                x = x if self._norm_first else low(_norm(x))
        return _norm(x)

    def _linear(self, x: np.ndarray, matmuls: _Matmuls) -> np.ndarray:
        weight, bias = next(matmuls)
        return x @ self._low(weight) + bias

    def _attention(self, x: np.ndarray, matmuls: _Matmuls) -> np.ndarray:
        low, size = self._low, 64
        packed = low(self._linear(x, matmuls)).reshape(len(x), 3, -1, size)
        q, k, v = packed.transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) * np.float32(size**-0.5)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = low(low(weights) @ v / weights.sum(-1, keepdims=True))
        return self._linear(mixed.transpose(1, 0, 2).reshape(x.shape), matmuls)

    def _mlp(self, x: np.ndarray, matmuls: _Matmuls) -> np.ndarray:
        y = self._linear(x, matmuls)
        y = y * (0.5 + 0.5 * erf(y * np.float32(math.sqrt(0.5)))).astype(np.float32)
        return self._linear(self._low(y), matmuls)


def errors(encoder: Encoder, x: np.ndarray, dtype: str) -> dict[str, float]:
    """Return the error of each way, root mean square, relative to the output's."""
    want = encoder.run(x)
    scale = math.sqrt(float(np.mean(want**2)))
    return {
        way: math.sqrt(float(np.mean((encoder.run(x, dtype, way) - want) ** 2))) / scale
        for way in _WAYS
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.residual_sums")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument(
        "--outlier", type=float, default=0.0, help="added to a channel of the input"
    )
    args = parser.parse_args()
    x = np.random.default_rng(1).standard_normal((args.length, args.hidden), np.float32)
    x[:, 7] += args.outlier
    rows = []
    for norm_first in (False, True):
        encoder = Encoder(args.layers, args.hidden, norm_first)
        for dtype in _DTYPES:
            found = errors(encoder, x, dtype)
            name = "pre-norm" if norm_first else "post-norm"
            rows.append([name, dtype, *(f"{found[way]:.1e}" for way in _WAYS)])
    print(markdown(["encoder", "dtype", *_WAYS], rows))


if __name__ == "__main__":
    main()
