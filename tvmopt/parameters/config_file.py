"""Read parameters from a YAML file: a mapping of their names to values."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from tvmopt.errors import ConfigError, in_one_line
from tvmopt.plain_yaml import read_yaml
from tvmopt.printable import shown


def read_config(path: str, known: Collection[str]) -> dict[str, Any]:
    """Return the values of a YAML file by parameter.

    Args:
        path: The file.
        known: Names of the command's parameters.

    Raises:
        ConfigError: When it cannot be read, is no mapping, or names an unknown parameter.
    """
    rule = "config must be a YAML file that maps names of parameters to values"
    try:
        data = read_yaml(Path(path).expanduser())
    except (OSError, ValueError, OverflowError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{rule}, but {shown(path)} cannot be read: {in_one_line(error)}; correct the file"
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{rule}, but {shown(path)} holds {type(data).__name__}")
    unknown(f"each name in {shown(path)}", data, known)
    if "config" in data:
        raise ConfigError(f"config must not be named in a config file, but {shown(path)} does")
    # A name without a value means the default.
    return {name: value for name, value in data.items() if value is not None}


def unknown(what: str, given: Collection[object], known: Collection[str]) -> None:
    """Refuse names that are no parameters; name the nearest one.

    Raises:
        ConfigError: When there is such a name.
    """
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), list(known), n=1)
            meant = f"; did you mean {near[0]}?" if near else f" ({', '.join(known)})"
            raise ConfigError(f"{what} must be one of this command's, but got {shown(name)}{meant}")
