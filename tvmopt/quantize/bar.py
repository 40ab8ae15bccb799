"""When a converted model is good enough, and by how much more it must be so on few samples."""

from __future__ import annotations

import dataclasses

from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import Accuracy

_COSINE_LOSS = {"float16": 1e-3, "bfloat16": 1e-3, "int8": 1e-2}


@dataclasses.dataclass(frozen=True)
class Bar:
    """What a skip set must keep.

    Attributes:
        max_drop: Accuracy it may lose (0.01: one sample in a hundred).
        margin: Share of every allowance that may be used up on the samples measured, since others
            will be evaluated.
    """

    max_drop: float = 0.01
    margin: float = 0.3

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: When one breaks its rule.
        """
        for name in ("max_drop", "margin"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ConfigError(f"{name} must be above 0 and at most 1, but got {value!r}")

    def cosine_loss(self, dtype: str) -> float:
        """How far a cosine may be from 1 on the samples measured."""
        return self.margin * _COSINE_LOSS[dtype]

    def counts(self, rows: int) -> bool:
        """Whether so many rows can show a drop as small as is allowed."""
        return rows * self.margin * self.max_drop >= 1

    def holds(self, accuracy: Accuracy, dtype: str, rows: int) -> bool:
        """Whether the outputs are close to the float model's, or the accuracy is.

        The smallest cosine of an output must be at least 0.99 (int8) or 0.999 (16-bit types), or
        the accuracy may drop by ``max_drop``; less the margin. The drop counts only when there are
        enough rows to see one so small.

        Args:
            accuracy: Of the converted model.
            dtype: What it was converted to.
            rows: Rows that the accuracy was counted on.
        """
        if 1 - accuracy.cosine <= self.cosine_loss(dtype):
            return True
        return self.counts(rows) and accuracy.drop <= self.margin * self.max_drop
