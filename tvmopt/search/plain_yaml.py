"""YAML that a person wrote: no aliases, which can stand for 9^9 values, and no deep nesting."""

from __future__ import annotations

from typing import Any

import yaml

_MOST_CHARACTERS, _DEEPEST = 100_000, 20


def load_yaml(text: str) -> Any:
    """What ``text`` holds.

    Raises:
        ValueError: When it is too long, too deep, or holds an alias.
        yaml.YAMLError: When it is no YAML.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"it must have at most {_MOST_CHARACTERS} characters, but has {len(text)}")
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it must hold no aliases, but has *{event.anchor}")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"it must be nested at most {_DEEPEST} deep")
    return yaml.safe_load(text)
