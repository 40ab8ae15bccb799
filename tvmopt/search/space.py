"""Search space: dtype x skip set x layout x tuning effort."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from tvmopt.choices import GRANULARITIES, MEASURING, one_of
from tvmopt.errors import ConfigError

FLOAT = "float32"
#: Tuning strategies, the price rising.
RISING = ("none", "default", "fast", "metaschedule")
_SKIPS = "skip_layers_"
_EFFORT = re.compile(rf"({'|'.join(RISING)})(?:-(\d+))?(?:-({'|'.join(GRANULARITIES)}))?")


@dataclasses.dataclass(frozen=True, order=True)
class Variant:
    """Conversion settings of an artifact.

    Attributes:
        dtype: dtype of the layers.
        skip_layers: Layers that keep their own dtype, as indices separated by commas.
        layout: Layout of the convolutions.
    """

    dtype: str
    skip_layers: str
    layout: str


@dataclasses.dataclass(frozen=True, order=True)
class Effort:
    """Tuning effort: strategy, budget and granularity.

    Attributes:
        strategy: Name of the tuning strategy.
        size: ``topk`` of ``fast``, ``trials`` of ``metaschedule``, else 0.
        granularity: One of ``GRANULARITIES``; ``"subgraph"`` where nothing is measured.

    Raises:
        ConfigError: When there is no such granularity, or the strategy has no choice of it.
    """

    strategy: str
    size: int = 0
    granularity: str = "subgraph"

    def __post_init__(self) -> None:
        allowed = GRANULARITIES if self.measures else ("subgraph",)
        one_of(f"granularity of the effort {self.strategy}", self.granularity, allowed)

    @property
    def measures(self) -> bool:
        """Return whether candidates are measured; only then granularity matters."""
        return self.strategy in MEASURING

    @property
    def price(self) -> tuple[int, int, bool]:
        """Return a sort key, cheapest first; granularity operator has fewer tasks than subgraph."""
        return (RISING.index(self.strategy), self.size, self.granularity == "subgraph")

    def __str__(self) -> str:
        size = [str(self.size)] if self.size else []
        other = [self.granularity] if self.granularity != "subgraph" else []
        return "-".join([self.strategy, *size, *other])

    @classmethod
    def parse(cls, text: str) -> Effort:
        """Parse ``"default"``, ``"fast-20"``, ``"fast-20-operator"``, ``"metaschedule-64"``.

        Raises:
            ConfigError: When ``text`` is no effort.
        """
        found = _EFFORT.fullmatch(text)
        if found is None:
            raise ConfigError(
                "an effort must be a strategy with its size and granularity, such as "
                f"fast-20-operator, but got {text!r}"
            )
        strategy, size, granularity = found.groups()
        return cls(strategy, int(size or 0), granularity or "subgraph")


@dataclasses.dataclass(frozen=True, order=True)
class Choice:
    """One point of the space: a variant and its tuning effort."""

    variant: Variant
    effort: Effort

    def to_dict(self) -> dict[str, str]:
        """JSON-able form; :meth:`from_dict` reverses it."""
        return {**dataclasses.asdict(self.variant), "effort": str(self.effort)}

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> Choice:
        """Rebuild a choice from :meth:`to_dict`."""
        variant = Variant(data["dtype"], data["skip_layers"], data["layout"])
        return cls(variant, Effort.parse(data["effort"]))

    def is_twin(self, other: Choice) -> bool:
        """Return whether the two differ only in tuning granularity."""
        ours, theirs = self.effort, other.effort
        return (
            self.variant == other.variant
            and (ours.strategy, ours.size) == (theirs.strategy, theirs.size)
            and ours.granularity != theirs.granularity
        )

    def __str__(self) -> str:
        skipped = self.variant.skip_layers
        count = len(skipped.split(",")) if skipped else 0
        parts = [self.variant.dtype, self.variant.layout, str(self.effort)]
        if count:
            parts.append(f"without {count} layer{'s' if count > 1 else ''}")
        return " ".join(parts)


BASELINE = Choice(Variant(FLOAT, "", "NCHW"), Effort("none"))
"""Trial zero: the model compiled by TVM's own pipeline, compared with ONNX Runtime."""


class Suggester(Protocol):
    """Part of ``optuna.Trial`` that the space uses."""

    def suggest_categorical(self, name: str, choices: list[str]) -> Any:
        """Return the value of one parameter."""


@dataclasses.dataclass(frozen=True)
class Space:
    """All combinations that make sense for one model on one target.

    Attributes:
        dtypes: dtypes.
        skip_layers: For each but float32, skip sets of growing size.
        layouts: Layouts.
        efforts: Tuning efforts, cheapest first; they are the rungs of successive halving.
    """

    dtypes: tuple[str, ...]
    skip_layers: Mapping[str, tuple[str, ...]]
    layouts: tuple[str, ...]
    efforts: tuple[Effort, ...]

    def __post_init__(self) -> None:
        for name in ("dtypes", "layouts", "efforts"):
            if not getattr(self, name):
                raise ConfigError(f"{name} must hold at least one value, but the space has none")
        for dtype in self.dtypes:
            if not self.skips_of(dtype):
                raise ConfigError(f"skip_layers must hold a set for {dtype}, but has none")

    def skips_of(self, dtype: str) -> tuple[str, ...]:
        """Skip sets to combine with ``dtype``; none for float32."""
        return ("",) if dtype == FLOAT else tuple(self.skip_layers.get(dtype, ()))

    def variants(self) -> Iterator[Variant]:
        """Return every variant; the first one of each dtype comes first."""
        rest = []
        for dtype in self.dtypes:
            for layout in self.layouts:
                for skipped in self.skips_of(dtype):
                    variant = Variant(dtype, skipped, layout)
                    if layout == self.layouts[0] and skipped == self.skips_of(dtype)[0]:
                        yield variant
                    else:
                        rest.append(variant)
        yield from rest

    def __len__(self) -> int:
        return len(list(self.variants())) * len(self.efforts)

    def __contains__(self, choice: object) -> bool:
        return (
            isinstance(choice, Choice)
            and choice.effort in self.efforts
            and choice.variant in set(self.variants())
        )

    def suggest(self, trial: Suggester) -> Choice:
        """Take a choice from an Optuna trial; a parameter is asked for only where it applies."""
        dtype = trial.suggest_categorical("dtype", list(self.dtypes))
        skipped = ""
        if dtype != FLOAT:
            skipped = trial.suggest_categorical(_SKIPS + dtype, list(self.skips_of(dtype)))
        layout = trial.suggest_categorical("layout", list(self.layouts))
        effort = trial.suggest_categorical("effort", [str(e) for e in self.efforts])
        return Choice(Variant(dtype, skipped, layout), Effort.parse(effort))

    def params(self, choice: Choice) -> dict[str, str]:
        """Return Optuna's parameters of a choice; the inverse of :meth:`suggest`."""
        variant = choice.variant
        found = {"dtype": variant.dtype, "layout": variant.layout, "effort": str(choice.effort)}
        if variant.dtype != FLOAT:
            found[_SKIPS + variant.dtype] = variant.skip_layers
        return found

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; :meth:`from_dict` reverses it."""
        return {
            "dtypes": list(self.dtypes),
            "skip_layers": {k: list(v) for k, v in self.skip_layers.items()},
            "layouts": list(self.layouts),
            "efforts": [str(e) for e in self.efforts],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Space:
        """Rebuild a space from :meth:`to_dict`."""
        return cls(
            tuple(data["dtypes"]),
            {k: tuple(v) for k, v in data["skip_layers"].items()},
            tuple(data["layouts"]),
            tuple(Effort.parse(e) for e in data["efforts"]),
        )
