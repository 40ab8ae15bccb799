"""Declare a parameter once: a dataclass field with default, help, choices and limits.

A group is a frozen dataclass of fields made by :func:`parameter`::

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class TuningParameters(Group):
        topk: int = parameter(20, "most configurations of one function that fast measures", least=1)

:meth:`Group.parameters` gives the declarations; constructing a group checks its values.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Callable
from typing import Any

from tvmopt.choices import one_of
from tvmopt.errors import ConfigError
from tvmopt.printable import shown
from tvmopt.skip_layers import SkipLayers

_KEY = "parameter"
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of an entry point.

    Attributes:
        name: Its name on the command line, in MLproject, in YAML files and in Python.
        kind: ``str``, ``int``, ``float``, ``bool`` or ``SkipLayers``.
        default: Its default; None when a value is needed.
        help: What it means, with units.
        choices: The values it may take; empty for any.
        least: The smallest number it may be; None for no limit.
        most: The largest number it may be; None for no limit.
        listed: Whether it is a list of words, separated by commas; ``choices`` are for each word.
        check: Called as ``check(name, value)``; raises :class:`ConfigError` for other rules.
        used_by: The tuning strategies that use it; empty for all.
    """

    name: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    listed: bool = False
    check: Callable[[str, Any], None] | None = None
    used_by: tuple[str, ...] = ()

    def parse(self, text: str) -> Any:
        """Return the value that ``text`` stands for, checked.

        Raises:
            ConfigError: When it is no value of the parameter's type, or breaks its rule.
        """
        text = text.strip()
        if self.kind is bool:
            words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
            if text.lower() not in words:
                raise self._not_of_kind(text)
            return words[text.lower()]
        if self.kind is SkipLayers:
            return SkipLayers.parse(text)
        try:
            value = self.kind(text)
        except ValueError as error:
            raise self._not_of_kind(text) from error
        if self.kind is float and not math.isfinite(value):
            raise ConfigError(f"{self.name} must be a finite number, but got {shown(text)}")
        return self.checked(value)

    def converted(self, value: Any) -> Any:
        """Return a value of Python or YAML as one of the parameter's type, checked.

        Raises:
            ConfigError: When it is no value of the parameter's type, or breaks its rule.
        """
        if self.kind is SkipLayers:
            listed = value is None or isinstance(value, str | list | tuple)
            return SkipLayers.parse(value if listed else [value])
        if self.listed and isinstance(value, list | tuple):
            value = ",".join(map(str, value))
        if isinstance(value, str):
            return self.parse(value)
        if self.kind is str and isinstance(value, int | float) and not isinstance(value, bool):
            return self.checked(str(value))  # YAML reads a version such as 3 as a number
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) < 2**1000 else math.inf
        if self.kind is int and hasattr(value, "__index__") and not isinstance(value, bool):
            value = int(value)
        if type(value) is not self.kind:
            raise self._not_of_kind(value)
        return self.checked(value)

    def checked(self, value: Any) -> Any:
        """Return ``value`` of the parameter's type if it keeps to the rules.

        Raises:
            ConfigError: When it does not.
        """
        if self.kind is float and not math.isfinite(value):
            raise ConfigError(f"{self.name} must be a finite number, but got {shown(value)}")
        if self.choices:
            for word in words(value) if self.listed else (value,):
                one_of(self.name, word, self.choices)
        if self.least is not None and self.most is not None:
            if not self.least <= value <= self.most:
                raise ConfigError(
                    f"{self.name} must be {self.least:g} to {self.most:g}, but got {value:g}"
                )
        elif self.least is not None and not value >= self.least:
            raise ConfigError(f"{self.name} must be at least {self.least:g}, but got {value:g}")
        if self.check is not None:
            self.check(self.name, value)
        return value

    def _not_of_kind(self, value: object) -> ConfigError:
        word = _WORDS.get(self.kind, "text")
        got = shown(value)
        return ConfigError(f"{self.name} must be {word}, but got {got}")


def parameter(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
    listed: bool = False,
    check: Callable[[str, Any], None] | None = None,
    used_by: tuple[str, ...] = (),
) -> Any:
    """Return the field of a parameter in a :class:`Group`; see :class:`Parameter`."""
    rules = {
        "help": help, "choices": choices, "least": least, "most": most, "listed": listed,
        "check": check, "used_by": used_by,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata={_KEY: rules})


def words(text: str) -> tuple[str, ...]:
    """Return the distinct words of a list that is separated by commas."""
    return tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))


def needed(help: str) -> Any:
    """Return the field of a text parameter without default."""
    return dataclasses.field(metadata={_KEY: {"help": help}})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Base of groups of parameters; each field made by :func:`parameter` is one.

    Raises:
        ConfigError: When a value is not of its parameter's type, or breaks its rule.
    """

    def __post_init__(self) -> None:
        for one in self.parameters():
            object.__setattr__(self, one.name, one.converted(getattr(self, one.name)))

    @classmethod
    @functools.cache
    def parameters(cls) -> tuple[Parameter, ...]:
        """Return the declarations of the fields, in order."""
        kinds = typing.get_type_hints(cls)
        return tuple(
            Parameter(
                name=field.name,
                kind=kinds[field.name],
                default=None if field.default is dataclasses.MISSING else field.default,
                **field.metadata[_KEY],
            )
            for field in dataclasses.fields(cls)
            if _KEY in field.metadata
        )

    def values(self) -> dict[str, Any]:
        """Return the value of every parameter, by name, in order."""
        return {one.name: getattr(self, one.name) for one in self.parameters()}
