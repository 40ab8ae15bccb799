"""Every kind of function drawn at random, by name."""

from __future__ import annotations

from hypothesis import strategies as st

from .drawn import Drawn
from .drawn_injective import elementwise, movements
from .drawn_products import (
    convolutions,
    matmuls,
    transposed_convolutions,
    winograd_convolutions,
)
from .drawn_reductions import poolings, reductions

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
