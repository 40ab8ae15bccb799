"""Search space: every combination of the dimensions that makes sense for one model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from tvmopt.choices import AUTO
from tvmopt.device.dtypes import TF32
from tvmopt.errors import ConfigError
from tvmopt.search.choose import FLOAT
from tvmopt.search.dimension import Dimension
from tvmopt.search.dimensions import DIMENSIONS, VARIANT
from tvmopt.search.effort import Effort

_WITHOUT_SKIPS = (FLOAT, TF32.name, AUTO)


@dataclasses.dataclass(frozen=True, order=True)
class Variant:
    """Conversion settings of an artifact.

    Attributes:
        dtype: dtype of the layers.
        skip_layers: Layers that keep their own dtype, as indices separated by commas.
        layout: Layout of the convolutions.
        further: Name and value of each further dimension that applies, in the order of
            ``VARIANT``.
    """

    dtype: str
    skip_layers: str
    layout: str
    further: tuple[tuple[str, str], ...] = ()

    @property
    def in_any_layout(self) -> Variant:
        """Return the variant without its layout, which hardly changes the accuracy."""
        return dataclasses.replace(self, layout="")

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Variant:
        """Return the variant with the value of each dimension, by name."""
        names = (d.name for d in VARIANT if d.name not in ("dtype", "skip_layers", "layout"))
        further = tuple((name, values[name]) for name in names if name in values)
        return cls(values["dtype"], values.get("skip_layers", ""), values["layout"], further)


@dataclasses.dataclass(frozen=True, order=True)
class Choice:
    """One point of the space: a variant and its tuning effort."""

    variant: Variant
    effort: Effort

    def to_dict(self) -> dict[str, str]:
        """JSON-able form, the value of each dimension by name; :meth:`from_dict` reverses it."""
        variant = dataclasses.asdict(self.variant)
        further = dict(variant.pop("further"))
        return {**variant, **further, "effort": str(self.effort)}

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> Choice:
        """Rebuild a choice from :meth:`to_dict`."""
        return cls(Variant.of(data), Effort.parse(data["effort"]))

    def is_twin(self, other: Choice) -> bool:
        """Return whether the two differ only in tuning granularity."""
        ours, theirs = self.effort, other.effort
        return (
            self.variant == other.variant
            and (ours.strategy, ours.size) == (theirs.strategy, theirs.size)
            and ours.granularity != theirs.granularity
        )

    def settings(self) -> dict[str, Any]:
        """Return the parameters of the trial's request that the choice sets."""
        found: dict[str, Any] = {}
        for dimension, value in self._values():
            found |= dimension.settings(value)
        return found

    def params(self) -> dict[str, str]:
        """Return the parameters of a trial's run."""
        found: dict[str, str] = {}
        for dimension, value in self._values():
            found |= dimension.params(value)
        return found

    def _values(self) -> Iterator[tuple[Dimension, str]]:
        data = self.to_dict()
        return ((d, data[d.name]) for d in DIMENSIONS if d.name in data)

    def __str__(self) -> str:
        values = sorted(self._values(), key=lambda pair: bool(pair[0].of))
        return " ".join(filter(None, (dimension.label(value) for dimension, value in values)))


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
        further: Values of each further dimension that is searched, by its key.
    """

    dtypes: tuple[str, ...]
    skip_layers: Mapping[str, tuple[str, ...]]
    layouts: tuple[str, ...]
    efforts: tuple[Effort, ...]
    further: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("dtypes", "layouts", "efforts"):
            if not getattr(self, name):
                raise ConfigError(f"{name} must hold at least one value, but the space has none")
        for dtype in self.dtypes:
            if not self.skips_of(dtype):
                raise ConfigError(f"skip_layers must hold a set for {dtype}, but has none")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Space:
        """Return the space with the values of each dimension, by its key."""
        own = {field.name for field in dataclasses.fields(cls)} - {"further"}
        further = {key: value for key, value in values.items() if key not in own and value}
        return cls(**{key: values[key] for key in own}, further=further)

    def skips_of(self, dtype: str) -> tuple[str, ...]:
        """Skip sets to combine with ``dtype``; none for float32, tf32 and a dtype per layer."""
        return ("",) if dtype in _WITHOUT_SKIPS else tuple(self.skip_layers.get(dtype, ()))

    def options(self, dimension: Dimension, chosen: Mapping[str, str]) -> list[str]:
        """Return the values that a dimension may take; none where it does not apply.

        Args:
            dimension: The dimension.
            chosen: Values of the dimensions before it, by name.
        """
        if not dimension.applies(chosen):
            return []
        key = dimension.key
        values = self.further[key] if key in self.further else getattr(self, key, ())
        if isinstance(values, Mapping):
            values = values.get(chosen[dimension.of], ())
        return [str(value) for value in values]

    def variants(self) -> Iterator[Variant]:
        """Return every variant; the first one of each dtype comes first."""
        begun, rest = set(), []
        for variant in map(Variant.of, self._combinations(VARIANT, {})):
            if variant.dtype in begun:
                rest.append(variant)
            else:
                begun.add(variant.dtype)
                yield variant
        yield from rest

    def _combinations(
        self, dimensions: Sequence[Dimension], chosen: dict[str, str]
    ) -> Iterator[dict[str, str]]:
        """Return the values of the given dimensions; the last one varies fastest."""
        if not dimensions:
            yield chosen
            return
        first, *others = dimensions
        options = self.options(first, chosen)
        for more in [{first.name: value} for value in options] or [{}]:
            yield from self._combinations(others, {**chosen, **more})

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
        chosen: dict[str, str] = {}
        for dimension in DIMENSIONS:
            if options := self.options(dimension, chosen):
                name = dimension.parameter(chosen)
                chosen[dimension.name] = trial.suggest_categorical(name, options)
        return Choice.from_dict(chosen)

    def params(self, choice: Choice) -> dict[str, str]:
        """Return Optuna's parameters of a choice; the inverse of :meth:`suggest`."""
        values = choice.to_dict()
        applying = (d for d in DIMENSIONS if d.name in values and self.options(d, values))
        return {d.parameter(values): values[d.name] for d in applying}

    def parameters(self) -> dict[str, list[str]]:
        """Return the values of every parameter that :meth:`suggest` may ask for, by name."""
        found: dict[str, list[str]] = {}
        for dimension in DIMENSIONS:
            for value in dimension.applies_to or ("",):
                chosen = {dimension.of: value}
                if options := self.options(dimension, chosen):
                    found[dimension.parameter(chosen)] = options
        return found

    def describe(self) -> str:
        """Return the values of the dimensions, and the number of choices, in one line."""
        dtypes = [
            dtype if dtype in _WITHOUT_SKIPS else f"{dtype} ({len(self.skips_of(dtype))} skip sets)"
            for dtype in self.dtypes
        ]
        efforts = " -> ".join(map(str, self.efforts))
        lists = (", ".join(values) for values in (dtypes, self.layouts, *self.further.values()))
        return f"{' x '.join([*lists, efforts])}: {len(self)} choices"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; :meth:`from_dict` reverses it."""
        return {
            "dtypes": list(self.dtypes),
            "skip_layers": {k: list(v) for k, v in self.skip_layers.items()},
            "layouts": list(self.layouts),
            "efforts": [str(e) for e in self.efforts],
            **{key: list(values) for key, values in self.further.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Space:
        """Rebuild a space from :meth:`to_dict`."""
        return cls.of({d.key: d.load(data[d.key]) for d in DIMENSIONS if d.key in data})
