"""What a model is quantised to, and how the ranges of its activations are found."""

from __future__ import annotations

import dataclasses
from typing import Any

from tvmopt.config import CALIBRATIONS, QUANTIZATIONS
from tvmopt.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A static post-training quantisation to 8 bits.

    Attributes:
        types: Types of activations and weights: ``"u8s8"`` or ``"s8s8"``. Weights are symmetric.
        method: How a range is chosen from the calibration data: ``"minmax"`` takes all values,
            ``"entropy"`` the range that loses the least information (Kullback-Leibler), and
            ``"percentile"`` the central ``percentile`` per cent.
        percentile: For the method of that name, above 50 and at most 100.
        per_channel: One scale for each output channel of a weight, else one for each weight.
        symmetric: Whether zero points of activations are the middle of their type; costs a bit
            of resolution and is what some hardware wants.
        activation_matmul: Whether products of two activations (attention) are quantised as well.
    """

    types: str = "u8s8"
    method: str = "minmax"
    percentile: float = 99.99
    per_channel: bool = True
    symmetric: bool = False
    activation_matmul: bool = False

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: When a value breaks its rule.
        """
        if self.types not in QUANTIZATIONS:
            raise ConfigError(
                f"types of a quantisation must be one of {', '.join(QUANTIZATIONS)} (activations "
                f"and weights), but got {self.types!r}"
            )
        if self.method not in CALIBRATIONS:
            raise ConfigError(
                f"calibration method must be one of {', '.join(CALIBRATIONS)}, "
                f"but got {self.method!r}"
            )
        number = isinstance(self.percentile, int | float) and not isinstance(self.percentile, bool)
        if not number or not 50 < self.percentile <= 100:
            raise ConfigError(
                f"percentile must be above 50 and at most 100, but got {self.percentile!r}"
            )
        for name in ("per_channel", "symmetric", "activation_matmul"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, but got {getattr(self, name)!r}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; :meth:`from_dict` reverses it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Scheme:
        """Rebuild a scheme from :meth:`to_dict`."""
        return cls(**data)
