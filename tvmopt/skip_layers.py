"""``skip_layers``: the layers that a conversion leaves alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from tvmopt.choices import AUTO
from tvmopt.errors import ConfigError


class NamedLayer(Protocol):
    """Properties of a layer that skip patterns match."""

    @property
    def index(self) -> int:
        """Layer index."""

    @property
    def name(self) -> str:
        """Name of its ONNX node."""

    @property
    def op(self) -> str:
        """Its operator, in ONNX or Relax."""


class SkipLayers(tuple[int | str, ...]):
    """Patterns of layers, distinct and in order: indices, globs of layer names, operator types.

    The pattern ``"auto"`` stands for the skip set that the sensitivity stage proposes.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, given: str | Iterable[int | str] | None) -> SkipLayers:
        """Return the patterns in ``"0,fc*,MatMul"`` or ``[0, "fc*"]``; none for None.

        Raises:
            ConfigError: When an entry is neither a whole number nor text.
        """
        if isinstance(given, cls):
            return given
        if given is None:
            return cls()
        items = given.split(",") if isinstance(given, str) else given
        return cls(dict.fromkeys(found for found in map(_pattern, items) if found != ""))

    @property
    def auto(self) -> bool:
        """Return whether the skip set of the sensitivity stage is wanted."""
        return AUTO in self

    @property
    def named(self) -> SkipLayers:
        """Return the patterns without ``"auto"``."""
        return SkipLayers(pattern for pattern in self if pattern != AUTO)

    def resolve(
        self, layers: Sequence[NamedLayer], parameter: str = "skip_layers"
    ) -> dict[int, str]:
        """Return the indices of matching layers, with the reason ``"<parameter>: <pattern>"``.

        An operator type is ONNX's (``Conv``), Relax's (``nn.conv2d``) or its last part
        (``conv2d``).

        Raises:
            ConfigError: When an index or a pattern matches no layer.
        """
        found: dict[int, str] = {}
        for pattern in self:
            matched = [layer for layer in layers if _matches(layer, pattern)]
            if not matched:
                raise ConfigError(
                    f"{parameter} must match layers, but {pattern!r} matches none of "
                    f"{_summary(layers)}"
                )
            for layer in matched:
                found.setdefault(layer.index, f"{parameter}: {pattern}")
        return dict(sorted(found.items()))

    def __str__(self) -> str:
        return ",".join(map(str, self))


NO_LAYERS = SkipLayers()
SkipLayersLike = SkipLayers | str | Iterable[int | str] | None
"""Everything that :meth:`SkipLayers.parse` takes."""


def _pattern(item: int | str) -> int | str:
    if isinstance(item, str):
        text = item.strip()
        return int(text) if text.lstrip("+-").isdecimal() else text
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        raise ConfigError(
            f"skip_layers must hold indices, name globs or operator types, but got {item!r}"
        )
    return int(item)


def _matches(layer: NamedLayer, pattern: int | str) -> bool:
    if isinstance(pattern, int):
        return layer.index == pattern
    op = layer.op.removeprefix("relax.")
    wanted = pattern.removeprefix("relax.")
    return fnmatchcase(layer.name, pattern) or wanted in (op, op.rpartition(".")[2])


def _summary(layers: Sequence[NamedLayer]) -> str:
    if not layers:
        return "a model without layers"
    ops = ", ".join(sorted({layer.op for layer in layers}))
    names = [layer.name for layer in layers]
    shown = ", ".join(names if len(names) <= 4 else [*names[:2], "...", names[-1]])
    last = max(layer.index for layer in layers)
    return f"the layers 0 to {last} (names {shown}; operators {ops})"
