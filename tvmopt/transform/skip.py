"""``skip_layers``: select the layers that a conversion skips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from tvmopt.errors import ConfigError

SkipLayers = str | Iterable[int | str] | None
"""Indices, globs of layer names, or operator types: ``"0,fc*"``, ``[0, "fc*"]``, ``["MatMul"]``."""


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


def parse_skip_layers(skip_layers: SkipLayers) -> tuple[int | str, ...]:
    """Return the distinct indices and patterns in order; text is split at commas."""
    if skip_layers is None:
        return ()
    items = skip_layers.split(",") if isinstance(skip_layers, str) else list(skip_layers)
    parsed: list[int | str] = []
    for item in items:
        if isinstance(item, str):
            item = item.strip()
            if not item:
                continue
            if item.lstrip("+-").isdecimal():
                item = int(item)
        elif isinstance(item, bool) or not hasattr(item, "__index__"):
            raise ConfigError(
                f"skip_layers must hold indices, name globs or operator types, but got {item!r}"
            )
        else:
            item = int(item)
        parsed.append(item)
    return tuple(dict.fromkeys(parsed))


def resolve_skip_layers(layers: Sequence[NamedLayer], skip_layers: SkipLayers) -> dict[int, str]:
    """Return the indices of matching layers, with the reason ``"skip_layers: <pattern>"``.

    An operator type is ONNX's (``Conv``), Relax's (``nn.conv2d``) or its last part (``conv2d``).

    Raises:
        ConfigError: When an index or a pattern matches no layer.
    """
    found: dict[int, str] = {}
    for pattern in parse_skip_layers(skip_layers):
        matched = [layer for layer in layers if _matches(layer, pattern)]
        if not matched:
            raise ConfigError(
                f"skip_layers must match layers, but {pattern!r} matches none of {_summary(layers)}"
            )
        for layer in matched:
            found.setdefault(layer.index, f"skip_layers: {pattern}")
    return dict(sorted(found.items()))


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
