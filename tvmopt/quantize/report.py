"""Result of a sensitivity analysis: error and gain of each layer, and skip sets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmopt.errors import ConfigError
from tvmopt.quantize.dtype_map import DtypeMap, nth_map
from tvmopt.spreadsheet import write_csv

MEASURED, ESTIMATED, NOT_CONVERTIBLE = "measured", "estimated", "not convertible"


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """Error and gain of converting one layer alone, with all others float.

    Attributes:
        index: Layer index.
        name: Name of its ONNX node.
        op: ONNX operator.
        dtype: dtype of the converted layer.
        source: ``"measured"``: outputs of the model were compared. ``"estimated"``: time ran out;
            the error is that of the layer's own result, times the gain (output error over own
            error) that another dtype of the layer has, or the median layer. ``"not convertible"``:
            the layer stays float, for ``reason``.
        error: Error power over signal power of the worst output, averaged over batches; infinite
            on overflow. For integer outputs, the fraction that differs.
        cosine: Smallest cosine with the float outputs over batches and outputs; None when
            estimated.
        disagreement: Fraction of rows with another top-1; None without class scores, or when
            estimated.
        samples: Number of samples compared.
        saved_s: Predicted seconds that it saves; None when shapes are unknown.
        gain: ``saved_s`` as a fraction of all layers' predicted seconds in float32.
        latency_s: Measured seconds of the single layer in this dtype; None when not measured.
        float_latency_s: Measured seconds in float32; None when not measured.
        reason: Why the layer is not convertible.
    """

    index: int
    name: str
    op: str
    dtype: str
    source: str
    error: float = 0.0
    cosine: float | None = None
    disagreement: float | None = None
    samples: int = 0
    saved_s: float | None = None
    gain: float = 0.0
    latency_s: float | None = None
    float_latency_s: float | None = None
    reason: str = ""

    @property
    def sqnr_db(self) -> float:
        """Signal-to-quantization-noise ratio at the worst output, in decibels."""
        return -10 * math.log10(self.error) if self.error > 0 else math.inf


@dataclasses.dataclass(frozen=True)
class SkipSet:
    """Layers left in float while all others are converted.

    Attributes:
        dtype: dtype of the converted layers.
        layers: Sorted indices of the float layers.
        source: ``"measured"``, or ``"exact"`` for the float model itself.
        cosine: Smallest cosine with the float outputs over batches and outputs.
        agreement: Fraction of rows with the float model's top-1; None without class scores.
        drop: Accuracy drop as in evaluation: by the metric, top-1 or fidelity.
        gain: Fraction of all layers' predicted seconds that is still saved.
        samples: Number of samples compared.
        holds: Whether the set meets the :class:`Bar` with its margin; a stricter margin applies
            to sets tried while shrinking another set.
        predicted_loss: Predicted mean of 1 - cosine over batches: half of the errors of single
            layers, added.
        mean_loss: Measured mean; None where not all batches were measured.
        loss_bound: Its 95% upper bound on other samples, see :mod:`tvmopt.quantize.loss_bound`.
    """

    dtype: str
    layers: tuple[int, ...]
    source: str
    cosine: float
    agreement: float | None
    drop: float
    gain: float
    samples: int
    holds: bool
    predicted_loss: float = 0.0
    mean_loss: float | None = None
    loss_bound: float | None = None


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """Result of :func:`~tvmopt.quantize.sensitivity.sensitivity`.

    Attributes:
        dtypes: Analysed dtypes.
        costs: One entry per layer and dtype.
        skip_sets: Skip sets of all dtypes, in measuring order.
        samples: Number of samples that the float model ran on.
        seconds: Wall time.
        settings: Scheme, bar, seed and roofline peaks.
        notes: What is missing or estimated, and why.
        dtype_maps: Dtypes of all layers together, in measuring order; empty unless asked for.
    """

    dtypes: tuple[str, ...]
    costs: tuple[LayerCost, ...]
    skip_sets: tuple[SkipSet, ...]
    samples: int
    seconds: float
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()
    dtype_maps: tuple[DtypeMap, ...] = ()

    def of(self, dtype: str) -> list[LayerCost]:
        """Return the costs of one dtype, by layer.

        Raises:
            ConfigError: When the dtype was not analysed.
        """
        if dtype not in self.dtypes:
            raise ConfigError(
                f"dtype must be one that was analysed ({', '.join(self.dtypes)}), but got {dtype!r}"
            )
        return [cost for cost in self.costs if cost.dtype == dtype]

    def sets(self, dtype: str) -> list[SkipSet]:
        """Return the skip sets of one dtype, smallest first."""
        self.of(dtype)
        found = [s for s in self.skip_sets if s.dtype == dtype]
        return sorted(found, key=lambda s: (len(s.layers), -s.gain))

    def proposed(self, dtype: str) -> tuple[int, ...]:
        """Return the skip set with the largest gain that meets the bar with its margin.

        Among sets of nearly equal gain, the one with the largest cosine wins.

        Raises:
            ConfigError: When the dtype was not analysed.
        """
        return best(self.sets(dtype)).layers

    @property
    def chosen_map(self) -> DtypeMap:
        """Return the fastest map of dtypes that meets the bar.

        Raises:
            ConfigError: When no maps were measured.
        """
        return self.map(0)

    def map(self, number: int) -> DtypeMap:
        """Return a map by its number, see :func:`.dtype_map.numbered`; 0 is the chosen one.

        Raises:
            ConfigError: When no maps were measured.
        """
        if not self.dtype_maps:
            raise ConfigError(
                "dtype=auto needs an analysis with layer_dtypes, but this one has skip sets only"
                "; analyse with dtype=auto"
            )
        return nth_map(self.dtype_maps, number)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary for :meth:`from_dict`; infinities become text."""
        data = dataclasses.asdict(self)
        data["costs"] = [_plain(cost) for cost in data["costs"]]
        data["skip_sets"] = [_plain(item) for item in data["skip_sets"]]
        data["dtype_maps"] = [_plain(item) for item in data["dtype_maps"]]
        data["dtypes"], data["notes"] = list(self.dtypes), list(self.notes)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sensitivity:
        """Rebuild an analysis from :meth:`to_dict`."""
        return cls(
            dtypes=tuple(data["dtypes"]),
            costs=tuple(LayerCost(**_numbers(cost)) for cost in data["costs"]),
            skip_sets=tuple(SkipSet(**_numbers(_tuples(s))) for s in data["skip_sets"]),
            samples=data["samples"],
            seconds=data["seconds"],
            settings=dict(data["settings"]),
            notes=tuple(data["notes"]),
            dtype_maps=tuple(_dtype_map(one) for one in data["dtype_maps"]),
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat row per layer and dtype, with the proposal's decision."""
        proposed = {dtype: set(self._skipped(dtype)) for dtype in self.dtypes}
        return [
            {
                **_plain(dataclasses.asdict(cost)),
                "sqnr_db": round(cost.sqnr_db, 2) if math.isfinite(cost.sqnr_db) else "",
                "proposed_skip": cost.index in proposed[cost.dtype],
            }
            for cost in self.costs
        ]

    def _skipped(self, dtype: str) -> Collection[int]:
        """Return the layers that the proposal does not convert to ``dtype``."""
        if not self.dtype_maps:
            return self.proposed(dtype)
        chosen = self.chosen_map.by_layer
        return [cost.index for cost in self.of(dtype) if chosen.get(cost.index) != dtype]

    def write_csv(self, path: Path) -> None:
        """Write :meth:`rows` as CSV."""
        fields = [f.name for f in dataclasses.fields(LayerCost)]
        with path.open("w", newline="", encoding="utf-8") as file:
            header = [*fields, "sqnr_db", "proposed_skip"]
            write_csv(file, header, ([row[name] for name in header] for row in self.rows()))

    def plot(self, path: Path) -> Path:
        """Plot costs, gains and skip sets to a PNG file; return ``path``."""
        from tvmopt.quantize.plot import plot_sensitivity

        return plot_sensitivity(self, path)


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """Convert infinities to text and tuples to lists, for JSON."""
    out: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        out[name] = list(value) if isinstance(value, tuple) else value
    return out


def _dtype_map(data: Mapping[str, Any]) -> DtypeMap:
    biases = _tuples(data.get("biases", {}))
    return DtypeMap(**{**_numbers(_tuples(data)), "biases": biases})


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def _numbers(data: Mapping[str, Any]) -> dict[str, Any]:
    special = {"inf", "-inf", "nan"}
    return {k: float(v) if isinstance(v, str) and v in special else v for k, v in data.items()}


NEARLY = 0.05
"""Share of the gain that is given for a larger cosine."""


def best(sets: Sequence[SkipSet]) -> SkipSet:
    """Return the set with the largest cosine among those that hold with nearly the largest gain.

    The empty set takes precedence. At least one set must hold.
    """
    held = [s for s in sets if s.holds]
    most = max(s.gain for s in held)
    near = [s for s in held if s.gain >= (1 - NEARLY) * most]
    return max(near, key=lambda s: (not s.layers, s.cosine, s.gain, -len(s.layers)))


BALANCED = 0.5
"""Thrift of :func:`ranked` that gives up neither large layers for little nor many small ones."""


def ranked(costs: Sequence[LayerCost], thrift: float) -> list[int]:
    """Return the indices of convertible layers in skip order.

    The order is by error over gain to the power of ``thrift``. By error alone (0), large layers are
    skipped for little benefit; by error over gain (1), many small layers are, and the set grows
    long.
    """
    least = 1e-4  # lower bound of the gain, against division by zero

    def price(cost: LayerCost) -> float:
        return cost.error / max(cost.gain, least) ** thrift

    convertible = [cost for cost in costs if cost.source != NOT_CONVERTIBLE]
    return [cost.index for cost in sorted(convertible, key=price, reverse=True)]
