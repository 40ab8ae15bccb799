"""Strategies of random functions, by kind."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.kernels.cpu.drawn import BFLOAT16, BYTES, Drawn
from tests.kernels.cpu.drawn_injective import elementwise, movements
from tests.kernels.cpu.drawn_products import (
    convolutions,
    matmuls,
    transposed_convolutions,
    winograd_convolutions,
)
from tests.kernels.cpu.drawn_reductions import poolings, reductions

KINDS: dict[str, st.SearchStrategy[Drawn]] = {
    "convolution": convolutions(),
    "depthwise": convolutions(grouping="depthwise"),
    "winograd": winograd_convolutions(),
    "matmul": matmuls(),
    "transposed_convolution": transposed_convolutions(),
    "pooling": poolings(),
    "reduction": reductions(),
    "elementwise": elementwise(),
    "movement": movements(),
}

#: The same in 8- and 16-bit dtypes, for which some CPUs have dot-product instructions.
NARROW: dict[str, st.SearchStrategy[Drawn]] = {
    "byte_convolution": convolutions(types=BYTES),
    "byte_matmul": matmuls(BYTES),
    "bfloat16_convolution": convolutions(types=BFLOAT16),
    "bfloat16_matmul": matmuls(BFLOAT16),
    "bfloat16_winograd": winograd_convolutions(types=BFLOAT16),
}
