"""``LayoutConfig``: scoped settings of :func:`convert_layout`.

Source: ``LayoutConfig`` of apache/tvm pull request 6748, for Relay.
"""

from __future__ import annotations

import contextvars
import dataclasses
from typing import Self

from tvmopt.skip_layers import SkipLayers, SkipLayersLike

_SCOPES: contextvars.ContextVar[tuple[LayoutConfig, ...]] = contextvars.ContextVar(
    "tvmopt_layout_scopes", default=()
)


@dataclasses.dataclass(frozen=True)
class LayoutConfig:
    """Settings of layout conversions inside a ``with`` block; the innermost block applies.

    A scope belongs to its thread (or asyncio task).

    Attributes:
        skip_layers: Layers that keep their layout: indices, name globs or operator types.
        auto_skip: Whether to skip layers without benefit (too few channels for a block or for a
            tensor core).

    Raises:
        ConfigError: When ``skip_layers`` has an invalid entry.
    """

    skip_layers: SkipLayersLike = None
    auto_skip: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "skip_layers", SkipLayers.parse(self.skip_layers))

    def __enter__(self) -> Self:
        _SCOPES.set((*_SCOPES.get(), self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        _SCOPES.set(_SCOPES.get()[:-1])

    @staticmethod
    def current() -> LayoutConfig:
        """Return the settings of the innermost scope, or the defaults."""
        scopes = _SCOPES.get()
        return scopes[-1] if scopes else LayoutConfig()
