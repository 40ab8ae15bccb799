"""The dimensions of the search: the one list that all else about hyper-parameters follows from.

From ``DIMENSIONS`` follow the suggestion of a choice, its parameters in Optuna, the keys of the
YAML file and their checks, the stored space, the parameters of a trial's run, the columns of the
table of trials, the label of a choice, and the parameters of a trial's request. To add a
hyper-parameter of words, add a :class:`Dimension` to the list; a subclass changes what differs.
For example, the search would choose between two quantizations of int8 with::

    Dimension(
        "quantization", "quantizations", "activations and weights of int8", QUANTIZATIONS,
        of="dtype", applies_to=("int8",),
    )
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmopt.choices import (
    ACCURATE,
    AUTO,
    DTYPES,
    EXACT_THRESHOLDS,
    FAST,
    GRANULARITIES,
    LOW_DTYPES,
    QUANTIZERS,
    STRATEGIES,
    THRESHOLDS,
    is_layout,
    one_of,
)
from tvmopt.device.dtypes import TF32
from tvmopt.errors import ConfigError
from tvmopt.nncf_import import require_nncf
from tvmopt.printable import shown
from tvmopt.quantize.dtype_map import NUMBERED_MAPS
from tvmopt.search.choose import FLOAT, choose_efforts, choose_layouts, choose_skips
from tvmopt.search.dimension import Dimension, SearchedModel, Values
from tvmopt.search.effort import Effort
from tvmopt.search.yaml_values import listed, skip_set, whole, word, words

if TYPE_CHECKING:
    from tvmopt.search.declared import Declared

_MOST_MEASURED = 1_000_000
#: Name of the dimension of maps of dtypes, and its key in a space.
DTYPE_MAP, DTYPE_MAPS = "dtype_map", "dtype_maps"


class DtypeDimension(Dimension):
    """dtype of the layers."""

    def values(self, declared: Declared, model: SearchedModel) -> Values:
        """Return the dtypes, which are chosen before the sensitivity of layers is measured."""
        return model.dtypes

    def settings(self, value: str) -> dict[str, Any]:
        """Return the dtype; ``tf32`` is float32 that may be rounded, any other dtype is exact."""
        is_tf32 = value == TF32.name
        return {"dtype": FLOAT if is_tf32 else value, "allow_tf32": is_tf32}


class LayoutDimension(Dimension):
    """Layout of the convolutions."""

    def values(self, declared: Declared, model: SearchedModel) -> Values:
        """Return the layouts."""
        return choose_layouts(declared, model.convolutions, model.on_gpu)

    def check(self, declared: Declared) -> None:
        """Check the layouts."""
        for layout in declared.layouts:
            if not is_layout(layout):
                raise ConfigError(
                    f"layouts must hold layouts such as NHWC, but got {shown(layout)}"
                )


class SkipSetDimension(Dimension):
    """Set of layers that keep their dtype: indices separated by commas; other sets for each dtype.

    Its values are growing sets by dtype.
    """

    def values(self, declared: Declared, model: SearchedModel) -> Values:
        """Return the declared sets of each dtype, else those that the sensitivity proposes."""
        found: dict[str, tuple[str, ...]] = {}
        for dtype in filter(self.applies_to.__contains__, model.dtypes):
            if dtype in declared.skip_layers:
                found[dtype] = tuple(dict.fromkeys(declared.skip_layers[dtype]))
            elif model.sensitivity is not None:
                found[dtype] = choose_skips(model.sensitivity, dtype)
            else:
                found[dtype] = ("",)
        return found

    def load(self, stored: Any) -> Values:
        """Rebuild the sets by dtype."""
        return {dtype: tuple(sets) for dtype, sets in stored.items()}

    def read(self, key: str, value: object) -> Any:
        """Read a mapping from dtypes to sets."""
        if not isinstance(value, dict):
            raise ConfigError(f"{key} must list sets by dtype, but got {shown(value)}")
        return {
            word(key, dtype): tuple(skip_set(key, one) for one in listed(sets))
            for dtype, sets in value.items()
        }

    def check(self, declared: Declared) -> None:
        """Check the dtypes of the sets."""
        for dtype in declared.skip_layers:
            one_of("dtypes", dtype, ("float32", *LOW_DTYPES))

    def settings(self, value: str) -> dict[str, Any]:
        """Return the layers, which take the layout of the choice."""
        return {"keep_dtype": value}

    def params(self, value: str) -> dict[str, str]:
        """Return the set, or ``"none"``: a run's parameter is not empty."""
        return {self.name: value or "none"}

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the titles of the number of layers and of the set."""
        return ("skipped", self.name)

    def cells(self, value: str) -> tuple[str, ...]:
        """Return the number of layers and the set."""
        return (str(_layers(value)), value)

    def label(self, value: str) -> str:
        """Return the number of layers in words."""
        count = _layers(value)
        return f"without {count} layer{'s' if count > 1 else ''}" if count else ""


class QuantizerDimension(Dimension):
    """Bias correction of int8 layers."""

    def check(self, declared: Declared) -> None:
        """Check the quantizers, and that NNCF is installed where one needs it."""
        super().check(declared)
        for quantizer in declared.restriction(self.key):
            if quantizer in (FAST, ACCURATE):
                require_nncf(quantizer)


class DtypeMapDimension(Dimension):
    """Which map of dtypes ``auto`` has: a number, as text; known after the analysis."""

    def label(self, value: str) -> str:
        """Return the words for a map behind the first."""
        return "" if value == "0" else f"map {value}"


class ThresholdsDimension(Dimension):
    """How the thresholds of trees are kept."""

    def values(self, declared: Declared, model: SearchedModel) -> Values:
        """Return the declared ways, or all for large ensembles: others do not get faster."""
        found = super().values(declared, model)
        return found or (self.allowed if model.has_large_trees else ())

    def label(self, value: str) -> str:
        """Return the words for rounded thresholds."""
        return "" if value == EXACT_THRESHOLDS else f"{value} thresholds"


class EffortDimension(Dimension):
    """Tuning effort: its values, cheapest first, are the rungs of successive halving."""

    def values(self, declared: Declared, model: SearchedModel) -> Values:
        """Return the efforts."""
        return choose_efforts(declared, model.on_gpu)

    def load(self, stored: Any) -> Values:
        """Rebuild the efforts."""
        return tuple(map(Effort.parse, stored))

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of the parts of an effort."""
        return ("strategies", "granularities", "topk", "metaschedule_trials")

    def read(self, key: str, value: object) -> Any:
        """Read words, or whole numbers."""
        if key == "metaschedule_trials":
            return whole(key, value)
        if key == "topk":
            return tuple(whole(key, one) for one in listed(value))
        return words(key, value)

    def check(self, declared: Declared) -> None:
        """Check the parts of the efforts."""
        for strategy in declared.strategies:
            one_of("strategies", strategy, STRATEGIES)
        for granularity in declared.granularities:
            one_of("granularities", granularity, GRANULARITIES)
        counts = (*declared.topk, declared.metaschedule_trials)
        if not declared.topk or min(counts) < 1 or max(counts) > _MOST_MEASURED:
            raise ConfigError(
                "topk and metaschedule_trials must be at least 1 and at most "
                f"{_MOST_MEASURED}, but got {shown(list(declared.topk))} and "
                f"{shown(declared.metaschedule_trials)}"
            )

    def settings(self, value: str) -> dict[str, Any]:
        """Return strategy, granularity and size."""
        return Effort.parse(value).settings()

    def params(self, value: str) -> dict[str, str]:
        """Return the effort, and its strategy and granularity to filter by."""
        effort = Effort.parse(value)
        parts = {"strategy": effort.strategy, "granularity": effort.granularity}
        return {self.name: value, **parts}

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the titles of the effort and of its granularity."""
        return (self.name, "granularity")

    def cells(self, value: str) -> tuple[str, ...]:
        """Return the effort and its granularity."""
        return (value, Effort.parse(value).granularity)


def _layers(skipped: str) -> int:
    return len(skipped.split(",")) if skipped else 0


EFFORT = EffortDimension("effort", "efforts", "tuning strategy, its size and granularity")
DIMENSIONS: tuple[Dimension, ...] = (
    DtypeDimension("dtype", "dtypes", "dtype of the layers", DTYPES),
    SkipSetDimension(
        "skip_layers",
        "skip_layers",
        "layers that keep their dtype",
        of="dtype",
        applies_to=LOW_DTYPES,
    ),
    QuantizerDimension(
        "quantizer",
        "quantizers",
        "correction of int8 layers; searched only where values are declared",
        (AUTO, *QUANTIZERS),
        of="dtype",
        applies_to=("int8",),
    ),
    DtypeMapDimension(
        DTYPE_MAP,
        DTYPE_MAPS,
        "map of dtypes of auto: the fastest that keeps the accuracy, or the next",
        tuple(map(str, range(-NUMBERED_MAPS, NUMBERED_MAPS))),
        of="dtype",
        applies_to=(AUTO,),
    ),
    ThresholdsDimension("thresholds", "thresholds", "thresholds of trees", THRESHOLDS),
    LayoutDimension("layout", "layouts", "layout of the convolutions"),
    EFFORT,
)
"""All dimensions, in the order in which Optuna is asked for them."""
VARIANT = tuple(
    sorted((d for d in DIMENSIONS if d is not EFFORT), key=lambda dimension: bool(dimension.of))
)
"""Dimensions of a variant: a dimension that refines another one varies faster than the others."""
KEYS = {key: dimension for dimension in DIMENSIONS for key in dimension.keys}
"""The dimension that each key of the YAML file restricts."""
