"""``LayoutConfig``: what :func:`convert_layout` leaves alone, for a scope.

Source: ``LayoutConfig`` of apache/tvm pull request 6748, for Relay.
"""

from __future__ import annotations

import contextvars
import dataclasses
from typing import Self

from tvmopt.transform.skip import SkipLayers, parse_skip_layers

_SCOPES: contextvars.ContextVar[tuple[LayoutConfig, ...]] = contextvars.ContextVar(
    "tvmopt_layout_scopes", default=()
)


@dataclasses.dataclass(frozen=True)
class LayoutConfig:
    """Settings of the conversions inside of a ``with`` block; of nested blocks the inner counts.

    A scope belongs to its thread (or task).

    Attributes:
        skip_layers: Layers to leave in their layout: numbers, name globs or operator types.
        auto_skip: Whether layers that cannot profit are left alone as well (too few channels for a
            block or for a tensor core).

    Raises:
        ConfigError: When ``skip_layers`` holds something else.
    """

    skip_layers: SkipLayers = None
    auto_skip: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "skip_layers", parse_skip_layers(self.skip_layers))

    def __enter__(self) -> Self:
        _SCOPES.set((*_SCOPES.get(), self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        _SCOPES.set(_SCOPES.get()[:-1])

    @staticmethod
    def current() -> LayoutConfig:
        """The innermost scope's settings, or the defaults outside of any."""
        scopes = _SCOPES.get()
        return scopes[-1] if scopes else LayoutConfig()
