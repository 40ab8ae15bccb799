"""Generate the search space from a model, a target and the user's restrictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tvmopt.choices import (
    DTYPES,
    GRANULARITIES,
    LOW_DTYPES,
    MEASURING,
    STRATEGIES,
    is_layout,
    one_of,
)
from tvmopt.errors import ConfigError, in_one_line
from tvmopt.plain_yaml import read_yaml
from tvmopt.printable import is_printable, shown
from tvmopt.quantize import Sensitivity
from tvmopt.quantize.report import BALANCED, ranked
from tvmopt.quantize.roofline import roofline
from tvmopt.search.space import FLOAT, RISING, Effort, Space

_LAYOUTS = ("NHWC", "NCHW16c", "NCHW")
_MOST_SKIP_SETS = 5
_MOST_MEASURED = 1_000_000
_PARTS = (8, 4, 2)
_KEYS = (
    "dtypes", "skip_layers", "layouts", "strategies", "granularities", "topk",
    "metaschedule_trials",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Declared:
    """The user's restrictions of the space; an empty field is chosen automatically.

    Attributes:
        dtypes: dtypes.
        skip_layers: Skip sets of each dtype, instead of measured ones.
        layouts: Layouts.
        strategies: Tuning strategies.
        granularities: Granularities of tuning.
        topk: Values of ``topk`` for ``fast``.
        metaschedule_trials: Trials of ``metaschedule``.
    """

    dtypes: tuple[str, ...] = ()
    skip_layers: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    layouts: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    granularities: tuple[str, ...] = ()
    topk: tuple[int, ...] = (20,)
    metaschedule_trials: int = 64

    def __post_init__(self) -> None:
        for dtype in (*self.dtypes, *self.skip_layers):
            one_of("dtypes", dtype, DTYPES)
        for strategy in self.strategies:
            one_of("strategies", strategy, STRATEGIES)
        for granularity in self.granularities:
            one_of("granularities", granularity, GRANULARITIES)
        for layout in self.layouts:
            if not is_layout(layout):
                raise ConfigError(
                    f"layouts must hold layouts such as NHWC, but got {shown(layout)}"
                )
        counts = (*self.topk, self.metaschedule_trials)
        if not self.topk or min(counts) < 1 or max(counts) > _MOST_MEASURED:
            raise ConfigError(
                "topk and metaschedule_trials must be at least 1 and at most "
                f"{_MOST_MEASURED}, but got {shown(list(self.topk))} and "
                f"{shown(self.metaschedule_trials)}"
            )


def read_declared(
    path: str, dtypes: str, layouts: str, strategies: str, granularities: str, topk: int
) -> Declared:
    """Read the user's restrictions: a YAML file, overridden by parameters.

    Args:
        path: YAML file with any of ``dtypes``, ``skip_layers`` (a list for each dtype),
            ``layouts``, ``strategies``, ``granularities``, ``topk`` and ``metaschedule_trials``;
            may be empty.
        dtypes: dtypes separated by commas; may be empty.
        layouts: Layouts, the same way.
        strategies: Tuning strategies, the same way.
        granularities: Granularities of tuning, the same way.
        topk: ``topk`` of ``fast``, when the file names none.

    Raises:
        ConfigError: When the file is no such mapping, or a value breaks its rule.
    """
    found: dict[str, Any] = {"topk": (topk,)}
    if path:
        found |= _read(Path(path).expanduser())
    given = {
        "dtypes": dtypes, "layouts": layouts, "strategies": strategies,
        "granularities": granularities,
    }  # fmt: skip
    for name, text in given.items():
        if text.strip():
            found[name] = tuple(filter(None, (part.strip() for part in text.split(","))))
    return Declared(**found)


def _read(path: Path) -> dict[str, Any]:
    rule = f"space must be a YAML file with a mapping of {', '.join(_KEYS)}"
    try:
        data = read_yaml(path)
    except (OSError, ValueError, OverflowError, yaml.YAMLError) as error:
        raise ConfigError(f"{rule}, but '{path}' cannot be read: {in_one_line(error)}") from error
    if not isinstance(data, dict) or not set(data) <= set(_KEYS):
        got = shown(list(data)) if isinstance(data, dict) else type(data).__name__
        raise ConfigError(f"{rule}, but '{path}' holds {got}")
    found: dict[str, Any] = {}
    for key, value in data.items():
        if key == "metaschedule_trials":
            found[key] = _whole(key, value)
        elif key == "topk":
            found[key] = tuple(_whole(key, v) for v in _list(key, value))
        elif key == "skip_layers":
            if not isinstance(value, dict):
                raise ConfigError(f"skip_layers must list sets by dtype, but got {shown(value)}")
            found[key] = {
                _word(key, k): tuple(_set(s) for s in _list(key, v)) for k, v in value.items()
            }
        else:
            found[key] = tuple(_word(key, v) for v in _list(key, value))
    return found


def _list(key: str, value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _whole(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key} must be a whole number, but got {shown(value)}")
    return value


def _word(key: str, value: object) -> str:
    text = value if isinstance(value, str) else shown(value)
    known = isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 2**63)
    if not known or not is_printable(text):
        raise ConfigError(f"{key} must hold printable words and numbers, but got {shown(value)}")
    return text


def _set(value: object) -> str:
    # A set is written as "0,3", as [0, 3], or as one number.
    if isinstance(value, list):
        return ",".join(_word("skip_layers", item) for item in value)
    return "" if value is None else _word("skip_layers", value)


def choose_dtypes(declared: Declared, flags: Collection[str], quantised: bool) -> tuple[str, ...]:
    """Return the dtypes of the space: by default those with a higher peak rate than float32.

    Args:
        declared: What the user narrows the space to.
        flags: Features of the target, in Linux's names.
        quantised: Whether the model came quantised; it keeps its own format then.

    Raises:
        ConfigError: When a format is declared that a quantised model cannot take.
    """
    if quantised:
        if set(declared.dtypes) - {FLOAT}:
            raise ConfigError(
                "dtypes must be float32 (the model's own format) for a model that is quantised, "
                f"but got {', '.join(declared.dtypes)}"
            )
        return (FLOAT,)
    if declared.dtypes:
        return tuple(dict.fromkeys(declared.dtypes))
    faster = roofline(flags).faster
    return (FLOAT, *(dtype for dtype in LOW_DTYPES if faster[dtype] > 1))


def choose_layouts(declared: Declared, convolutions: int) -> tuple[str, ...]:
    """Return the layouts of the space; only ``NCHW`` for a model without convolutions."""
    if not convolutions:
        return ("auto",)
    return tuple(dict.fromkeys(declared.layouts)) or _LAYOUTS


def choose_efforts(declared: Declared) -> tuple[Effort, ...]:
    """Return the tuning efforts of the space, cheapest first."""
    sizes = {"fast": declared.topk, "metaschedule": (declared.metaschedule_trials,)}
    granularities = declared.granularities or GRANULARITIES
    efforts = set()
    for strategy in declared.strategies or RISING[1:]:
        if strategy in MEASURING:
            efforts |= {Effort(strategy, s, g) for s in sizes[strategy] for g in granularities}
        else:
            efforts.add(Effort(strategy))
    return tuple(sorted(efforts, key=lambda effort: effort.price))


def choose_skips(found: Sensitivity, dtype: str) -> tuple[str, ...]:
    """Return the skip sets of one dtype: the proposed one, the empty one, and others by size.

    Sets that were seen to miss the bar are left out, but for the empty one: whether all layers can
    be converted is what everyone asks first. The set of all layers is the float model. Behind
    those that held come beginnings of the ranking by cost: the evaluation sees other samples than
    the analysis, and may refuse what that let pass.
    """
    sets = found.sets(dtype)
    proposed = found.proposed(dtype)
    held = [s for s in sets if s.holds and s.source != "exact" and s.layers]
    if not any(s.layers == proposed for s in held) and proposed:
        return ("",)  # only the float model itself holds: one try, to know
    others: list[tuple[int, ...]] = [()]
    for one in held:
        if one.layers != proposed and one.layers not in others:
            others.append(one.layers)
    order = ranked(found.of(dtype), BALANCED)
    for size in (len(order) // part for part in _PARTS):
        layers = tuple(sorted(order[:size]))
        if size > max(map(len, (proposed, *others))):
            others.append(layers)
    if len(others) > _MOST_SKIP_SETS - 1:  # the ends, and evenly between them
        last = len(others) - 1
        places = {round(i * last / (_MOST_SKIP_SETS - 2)) for i in range(_MOST_SKIP_SETS - 1)}
        others = [others[i] for i in sorted(places)]
    ordered = [proposed, *(layers for layers in others if layers != proposed)]
    return tuple(",".join(map(str, layers)) for layers in ordered)


def generate_space(
    declared: Declared,
    dtypes: Sequence[str],
    convolutions: int,
    sensitivity: Sensitivity | None,
) -> Space:
    """Return the search space.

    Args:
        declared: What the user narrows it to.
        dtypes: As of :func:`choose_dtypes`.
        convolutions: How many convolutions the model has.
        sensitivity: What layers cost, for skip sets that are not declared; None to skip none.
    """
    skips = {}
    for dtype in dtypes:
        if dtype == FLOAT:
            continue
        if dtype in declared.skip_layers:
            skips[dtype] = tuple(dict.fromkeys(declared.skip_layers[dtype]))
        elif sensitivity is not None:
            skips[dtype] = choose_skips(sensitivity, dtype)
        else:
            skips[dtype] = ("",)
    return Space(
        tuple(dtypes), skips, choose_layouts(declared, convolutions), choose_efforts(declared)
    )
