"""Attributes of ONNX LRN (local response normalisation)."""

from __future__ import annotations

import dataclasses
import json
from typing import Self


@dataclasses.dataclass(frozen=True)
class ResponseNorm:
    """``y = x / (bias + alpha / size * s) ** beta``; ``s`` is a sum of squares over channels.

    Attributes:
        axis: The axis of the channels.
        size: Channels of a window; ``(size - 1) // 2`` of them come before the window's own.
        alpha: Factor of the mean of squares.
        beta: Exponent.
        bias: Added to the mean.
    """

    axis: int
    size: int
    alpha: float
    beta: float
    bias: float

    @property
    def before(self) -> int:
        """Channels of a window before its own."""
        return (self.size - 1) // 2

    @property
    def after(self) -> int:
        """Channels of a window after its own."""
        return self.size // 2

    def to_json(self) -> str:
        """Return a text that :meth:`from_json` reads."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the result of :meth:`to_json`."""
        return cls(**json.loads(text))
