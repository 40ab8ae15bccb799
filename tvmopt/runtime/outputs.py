"""Outputs of one call: a list in the order of the ONNX graph, also indexed by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex, overload

import numpy as np


class Outputs(list[np.ndarray]):
    """A list of arrays; supports ``outputs[0]``, ``outputs["logits"]`` and ``dict(outputs)``.

    Made by :meth:`of`: an ``__init__`` of Python would add a tenth to the call of a small model.
    """

    __slots__ = ("_names",)

    _names: tuple[str, ...]

    @staticmethod
    def of(values: Iterable[np.ndarray], names: tuple[str, ...]) -> Outputs:
        """Return outputs.

        Args:
            values: The arrays.
            names: Name of each.
        """
        outputs = Outputs(values)
        outputs._names = names
        return outputs

    @overload
    def __getitem__(self, key: str | SupportsIndex) -> np.ndarray: ...
    @overload
    def __getitem__(self, key: slice) -> list[np.ndarray]: ...
    def __getitem__(self, key: str | SupportsIndex | slice) -> np.ndarray | list[np.ndarray]:
        """Output by position, slice or name."""
        if isinstance(key, str):
            if key not in self._names:
                raise KeyError(f"output must be one of {', '.join(self._names)}, but got {key!r}")
            key = self._names.index(key)
        return super().__getitem__(key)

    def keys(self) -> tuple[str, ...]:
        """Return the names in order."""
        return self._names

    def items(self) -> list[tuple[str, np.ndarray]]:
        """Return pairs of name and array in order."""
        return list(zip(self._names, self, strict=True))
