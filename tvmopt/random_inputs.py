"""Random inputs that a model is likely to take, for when nobody gives real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

KINDS = ("normal", "binary", "zeros", "ones")
"""``normal``: floats from N(0, 1), integers 0 or 1. ``binary``: everything 0 or 1, for models that
hold ids in floats. 0 and 1 are valid as ids, lengths and masks. ``zeros`` and ``ones``: everything
0, or 1, for models with rates or sizes as inputs."""

_CONSTANT = {"zeros": 0, "ones": 1}


class _Spec(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...


def random_arrays(
    specs: Sequence[_Spec], seed: int, kind: str, samples: int | None = None
) -> dict[str, np.ndarray]:
    """Arrays by input name, of the shapes of ``specs``; with ``samples``, that many stacked."""
    rng = np.random.default_rng(seed)
    arrays = {}
    values: np.ndarray
    for spec in specs:
        shape = spec.shape if samples is None else (samples, *spec.shape)
        if categories := len(getattr(spec, "categories", ())):
            # Codes; -1 is an unknown category, which some models refuse.
            values = rng.integers(-1 if kind == "normal" else 0, categories, shape)
        elif kind in _CONSTANT:
            values = np.full(shape, _CONSTANT[kind])
        elif np.dtype(spec.dtype).kind == "f" and kind == "normal":
            values = rng.standard_normal(shape)
        else:
            values = rng.integers(0, 2, shape)
        arrays[spec.name] = np.asarray(values).astype(spec.dtype)
    return arrays
