"""What a sensitivity analysis found: the price and the gain of each layer, and skip sets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmopt.errors import ConfigError
from tvmopt.spreadsheet import write_csv

MEASURED, ESTIMATED, NOT_CONVERTIBLE = "measured", "estimated", "not convertible"


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """What converting one layer alone, all others float, costs and may gain.

    Attributes:
        index: Number of the layer.
        name: Name of its ONNX node.
        op: ONNX operator.
        dtype: Type it was converted to.
        source: ``"measured"``: the outputs of the model were compared. ``"estimated"``: time ran
            out; the error of the layer's own result stands for that of the outputs. ``"not
            convertible"``: the layer stays float in any case, and ``reason`` says why.
        error: Power of the error over power of the outputs, averaged over batches, of the worst
            output; infinite when numbers overflow. Integer outputs: share that differs.
        cosine: Smallest cosine with the float outputs over batches and outputs; None when
            estimated.
        disagreement: Share of rows whose top-1 differs; None when the first output is no table of
            scores, or when estimated.
        samples: Samples compared.
        saved_s: Seconds of a roofline model that conversion saves; None when shapes are unknown.
        gain: The same as a share of the roofline seconds of all layers in float32.
        latency_s: Measured seconds of the layer alone in this type; None when not measured.
        float_latency_s: The same in float32.
        reason: Why it is not convertible.
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
        """Signal to quantisation noise at the worst output, in decibels."""
        return -10 * math.log10(self.error) if self.error > 0 else math.inf


@dataclasses.dataclass(frozen=True)
class SkipSet:
    """Layers left float, all others converted together.

    Attributes:
        dtype: Type of the others.
        layers: Numbers of the layers that stay float, sorted.
        source: ``"measured"``, or ``"exact"`` for the float model itself.
        cosine: Smallest cosine with the float outputs over batches and outputs.
        agreement: Share of rows with the float model's top-1; None without a table of scores.
        drop: Accuracy lost, as the evaluation counts it: top-1 with labels, else agreement or
            cosine.
        gain: Share of the roofline seconds of all layers that is still saved.
        samples: Samples compared.
        holds: Whether it meets the bar of :class:`Bar` with its margin; with a wider one when it
            is one of many sets that were tried to make another smaller.
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


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """Result of :func:`~tvmopt.quantize.sensitivity.sensitivity`.

    Attributes:
        dtypes: Types that were looked at.
        costs: One for each layer and type.
        skip_sets: For each type, in the order they were measured.
        samples: Samples the float model was run on.
        seconds: Time it took.
        settings: Scheme, bar, seed and the peaks of the roofline.
        notes: What was left out or estimated, and why.
    """

    dtypes: tuple[str, ...]
    costs: tuple[LayerCost, ...]
    skip_sets: tuple[SkipSet, ...]
    samples: int
    seconds: float
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()

    def of(self, dtype: str) -> list[LayerCost]:
        """Costs of one type, by layer.

        Raises:
            ConfigError: When the type was not looked at.
        """
        if dtype not in self.dtypes:
            raise ConfigError(
                f"dtype must be one that was analysed ({', '.join(self.dtypes)}), but got {dtype!r}"
            )
        return [cost for cost in self.costs if cost.dtype == dtype]

    def sets(self, dtype: str) -> list[SkipSet]:
        """Skip sets of one type, smallest first."""
        self.of(dtype)
        found = [s for s in self.skip_sets if s.dtype == dtype]
        return sorted(found, key=lambda s: (len(s.layers), -s.gain))

    def proposed(self, dtype: str) -> tuple[int, ...]:
        """Of the skip sets seen to meet the bar with its margin, one that gains most.

        Sets that gain nearly as much count as equal, and the one with the largest cosine is taken.

        Raises:
            ConfigError: When the type was not looked at.
        """
        return best(self.sets(dtype)).layers

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; :meth:`from_dict` reverses it. Infinities become text."""
        data = dataclasses.asdict(self)
        data["costs"] = [_plain(cost) for cost in data["costs"]]
        data["skip_sets"] = [_plain(item) for item in data["skip_sets"]]
        data["dtypes"], data["notes"] = list(self.dtypes), list(self.notes)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sensitivity:
        """Rebuild an analysis from :meth:`to_dict`."""
        sets = [{**item, "layers": tuple(item["layers"])} for item in data["skip_sets"]]
        return cls(
            dtypes=tuple(data["dtypes"]),
            costs=tuple(LayerCost(**_numbers(cost)) for cost in data["costs"]),
            skip_sets=tuple(SkipSet(**_numbers(item)) for item in sets),
            samples=data["samples"],
            seconds=data["seconds"],
            settings=dict(data["settings"]),
            notes=tuple(data["notes"]),
        )

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each layer and type, whether the proposal skips it included."""
        proposed = {dtype: set(self.proposed(dtype)) for dtype in self.dtypes}
        return [
            {
                **_plain(dataclasses.asdict(cost)),
                "sqnr_db": round(cost.sqnr_db, 2) if math.isfinite(cost.sqnr_db) else "",
                "proposed_skip": cost.index in proposed[cost.dtype],
            }
            for cost in self.costs
        ]

    def write_csv(self, path: Path) -> None:
        """Write :meth:`rows` as CSV."""
        fields = [f.name for f in dataclasses.fields(LayerCost)]
        with path.open("w", newline="", encoding="utf-8") as file:
            header = [*fields, "sqnr_db", "proposed_skip"]
            write_csv(file, header, ([row[name] for name in header] for row in self.rows()))

    def plot(self, path: Path) -> Path:
        """Draw costs, gains and skip sets to a PNG file; returns ``path``."""
        from tvmopt.quantize.plot import plot_sensitivity

        return plot_sensitivity(self, path)


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """Infinities as text, tuples as lists: JSON has neither."""
    out: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        out[name] = list(value) if isinstance(value, tuple) else value
    return out


def _numbers(data: Mapping[str, Any]) -> dict[str, Any]:
    special = {"inf", "-inf", "nan"}
    return {k: float(v) if isinstance(v, str) and v in special else v for k, v in data.items()}


NEARLY = 0.05
"""Share of the gain that is given for a larger cosine."""


def best(sets: Sequence[SkipSet]) -> SkipSet:
    """Of those that hold and gain nearly the most, the set with the largest cosine.

    Nothing skipped comes before all others. One set must hold.
    """
    held = [s for s in sets if s.holds]
    most = max(s.gain for s in held)
    near = [s for s in held if s.gain >= (1 - NEARLY) * most]
    return max(near, key=lambda s: (not s.layers, s.cosine, s.gain, -len(s.layers)))


BALANCED = 0.5
"""Thrift of :func:`ranked` that gives up neither large layers for little nor many small ones."""


def ranked(costs: Sequence[LayerCost], thrift: float) -> list[int]:
    """Numbers of the convertible layers, those first that are to be skipped first.

    That is by error over gain to the power of ``thrift``. By the error alone (0), large layers are
    given up for little; by error over gain (1), many small ones are, and the set grows long.
    """
    least = 1e-4  # a layer that gains nothing is not infinitely dear

    def price(cost: LayerCost) -> float:
        return cost.error / max(cost.gain, least) ** thrift

    convertible = [cost for cost in costs if cost.source != NOT_CONVERTIBLE]
    return [cost.index for cost in sorted(convertible, key=price, reverse=True)]
