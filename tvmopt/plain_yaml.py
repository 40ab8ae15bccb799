"""Load YAML without aliases, which can expand to 9^9 values, and without deep nesting."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import yaml

_MOST_CHARACTERS, _DEEPEST = 100_000, 20


def read_yaml(path: Path) -> Any:
    """Load the YAML file ``path``; pipes, devices and large files are refused.

    Raises:
        OSError: When it cannot be read.
        ValueError: When it is no regular file, is too large, or as :func:`load_yaml`.
        yaml.YAMLError: When it is no YAML.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it must be a regular file")
    if path.stat().st_size > 4 * _MOST_CHARACTERS:  # UTF-8 takes at most 4 bytes a character
        raise ValueError(f"it must have at most {_MOST_CHARACTERS} characters, but has more")
    return load_yaml(path.read_text())


def load_yaml(text: str) -> Any:
    """Load the YAML document ``text``.

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
