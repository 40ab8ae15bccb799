"""The parameters of one command: a composition of groups, from text, YAML or Python values."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from tvmopt.errors import ConfigError
from tvmopt.parameters.config_file import read_config, unknown
from tvmopt.parameters.declare import Group, Parameter, parameter

_C = TypeVar("_C", bound="Command")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileParameters(Group):
    """A file with the other parameters."""

    config: str = parameter(
        "", "YAML file with any of these parameters by name; what is given beside it wins"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Base of the commands: each field is a group of parameters."""

    file: FileParameters

    @classmethod
    def summary(cls) -> str:
        """Return what the command does, in one line."""
        return (cls.__doc__ or "").partition("\n")[0]

    @classmethod
    @functools.cache
    def groups(cls) -> dict[str, type[Group]]:
        """Return the type of each group, by field; groups of base classes are last."""
        kinds = typing.get_type_hints(cls)
        classes = [one for one in cls.__mro__ if issubclass(one, Command)]
        return {name: kinds[name] for one in classes for name in inspect.get_annotations(one)}

    @classmethod
    @functools.cache
    def parameters(cls) -> tuple[Parameter, ...]:
        """Return the parameters of all groups, in order."""
        return tuple(one for group in cls.groups().values() for one in group.parameters())

    @classmethod
    def of(cls: type[_C], given: Mapping[str, Any]) -> _C:
        """Return the parameters from what is given, the file ``config``, and the defaults.

        Args:
            given: Values by name, as text or of the parameters' types.

        Raises:
            ConfigError: When a name is unknown, a value breaks its rule, or one is missing.
        """
        known = {one.name: one for one in cls.parameters()}
        unknown("a parameter", given, known)
        path = known["config"].converted(given.get("config", ""))
        values = {**(read_config(path, tuple(known)) if path else {}), **given}
        for one in known.values():
            if one.default is None and values.get(one.name, "") == "":
                raise ConfigError(f"{one.name} must be given: {one.help}")
        parts: dict[str, Any] = {
            field: group(**{k: values[k] for k in _names(group) if k in values})
            for field, group in cls.groups().items()
        }
        return cls(**parts)

    def values(self) -> dict[str, Any]:
        """Return the value of every parameter, by name, in order."""
        parts = (getattr(self, field).values() for field in self.groups())
        return {name: value for part in parts for name, value in part.items()}


def _names(group: type[Group]) -> tuple[str, ...]:
    return tuple(one.name for one in group.parameters())
