"""Quantization scheme: dtypes, scales, and calibration method."""

from __future__ import annotations

import dataclasses
from typing import Any

from tvmopt.choices import CALIBRATIONS, QUANTIZATIONS, U8S8_PAIRS
from tvmopt.device.arch import Arch
from tvmopt.device.cpu import CpuArch
from tvmopt.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Static post-training quantization to 8 bits.

    Attributes:
        types: dtypes of activations and weights: ``"u8s8"`` or ``"s8s8"``; ``"u8s8-pairs"``
            scales the weights so that pairs of products stay within int16 (:mod:`.exact_pairs`),
            where scales are per channel. Weights are symmetric.
        method: Calibration method: ``"minmax"`` takes the full range, ``"entropy"`` minimises the
            Kullback-Leibler divergence, ``"percentile"`` takes the central ``percentile`` per
            cent.
        percentile: For method ``"percentile"``, above 50 and at most 100.
        per_channel: One weight scale per output channel, otherwise per tensor.
        symmetric: Whether activation zero points are the middle of their dtype; this loses some
            resolution, but some hardware requires it.
        activation_matmul: Whether to quantize matmuls of two activations (attention).
        integer_adds: Whether residual additions run in integers too. On CPUs they take as long in
            float32 (0.98 to 1.01 of the network's time), and every 8-bit sum rounds once more, see
            benchmarks/results/2026-11-30-float-adds.md. GPUs read and write a quarter of the bytes.
    """

    types: str = "u8s8"
    method: str = "minmax"
    percentile: float = 99.99
    per_channel: bool = True
    symmetric: bool = False
    activation_matmul: bool = False
    integer_adds: bool = False

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: When a value is invalid.
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
        for name in ("per_channel", "symmetric", "activation_matmul", "integer_adds"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, but got {getattr(self, name)!r}")

    @property
    def unsigned(self) -> bool:
        """Whether activations are uint8."""
        return self.types != "s8s8"

    @property
    def exact_pairs(self) -> bool:
        """Whether pairs of products stay within int16."""
        return self.types == U8S8_PAIRS and self.per_channel

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary for :meth:`from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Scheme:
        """Rebuild a scheme from :meth:`to_dict`."""
        return cls(**data)


def scheme_for(types: str, arch: Arch) -> Scheme:
    """Return the scheme of a model for a device: GPUs run residual additions in integers.

    Args:
        types: One of ``choices.QUANTIZATIONS``.
        arch: The device.

    Raises:
        ConfigError: When ``types`` is invalid.
    """
    return Scheme(types, integer_adds=not isinstance(arch, CpuArch))
