"""The user's restrictions of the search space: a YAML file, and parameters that override it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tvmopt.errors import ConfigError, in_one_line
from tvmopt.plain_yaml import read_yaml
from tvmopt.printable import shown
from tvmopt.search.dimensions import DIMENSIONS, KEYS


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
        further: Values of each further dimension, by its key.
    """

    dtypes: tuple[str, ...] = ()
    skip_layers: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    layouts: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    granularities: tuple[str, ...] = ()
    topk: tuple[int, ...] = (20,)
    metaschedule_trials: int = 64
    further: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for dimension in DIMENSIONS:
            dimension.check(self)

    @classmethod
    def of(cls, restrictions: Mapping[str, Any]) -> Declared:
        """Return the restrictions of a mapping by key."""
        own = {field.name for field in dataclasses.fields(cls)} - {"further"}
        further = {key: value for key, value in restrictions.items() if key not in own}
        return cls(**{k: v for k, v in restrictions.items() if k in own}, further=further)

    def restriction(self, key: str) -> Any:
        """Return what the user declared under a key."""
        return self.further[key] if key in self.further else getattr(self, key, ())

    def to_dict(self) -> dict[str, Any]:
        """Return the restrictions by key."""
        own = dataclasses.asdict(self)
        further = own.pop("further")
        return {**own, **further}


def read_declared(
    path: str,
    dtypes: str,
    layouts: str,
    strategies: str,
    granularities: str,
    topk: int,
    **further: str,
) -> Declared:
    """Read the user's restrictions: a YAML file, overridden by parameters.

    Args:
        path: YAML file with any of the keys of ``DIMENSIONS``; may be empty.
        dtypes: dtypes separated by commas; may be empty.
        layouts: Layouts, the same way.
        strategies: Tuning strategies, the same way.
        granularities: Granularities of tuning, the same way.
        topk: ``topk`` of ``fast``, when the file names none.
        further: Values of further dimensions, the same way, by key.

    Raises:
        ConfigError: When the file is no such mapping, or a value breaks its rule.
    """
    found: dict[str, Any] = {"topk": (topk,)}
    if path:
        found |= _read(Path(path).expanduser())
    given = {
        "dtypes": dtypes, "layouts": layouts, "strategies": strategies,
        "granularities": granularities, **further,
    }  # fmt: skip
    for name, text in given.items():
        if text.strip():
            found[name] = tuple(filter(None, (part.strip() for part in text.split(","))))
    return Declared.of(found)


def _read(path: Path) -> dict[str, Any]:
    rule = f"space must be a YAML file with a mapping of {', '.join(KEYS)}"
    try:
        data = read_yaml(path)
    except (OSError, ValueError, OverflowError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{rule}, but '{path}' cannot be read: {in_one_line(error)}; correct the file"
        ) from error
    if not isinstance(data, dict) or not set(data) <= set(KEYS):
        got = shown(list(data)) if isinstance(data, dict) else type(data).__name__
        raise ConfigError(f"{rule}, but '{path}' holds {got}")
    return {key: KEYS[key].read(key, value) for key, value in data.items()}
