"""Hint: a serialisable configuration of one kernel family for one device."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
from typing import Any, ClassVar, Self

from tvmopt.device.arch import Arch

_NOT_SHOWN = ("template", "arch")


@dataclasses.dataclass(frozen=True)
class Hint(abc.ABC):
    """A configuration that suffices, together with the function, to emit the kernel.

    Attributes:
        template: Name of the kernel family.
        arch: The device that the parameters were chosen for.
    """

    arch_type: ClassVar[type[Arch]]

    template: str
    arch: Any

    @property
    @abc.abstractmethod
    def group(self) -> tuple[object, ...]:
        """Grouping key: the cost model has a similar error on all configurations of a group."""

    @property
    @abc.abstractmethod
    def features(self) -> list[float]:
        """Feature vector of the configuration for the learned ranker."""

    @property
    def config_id(self) -> str:
        """Identifier of this configuration: the first 12 hex digits of its SHA-256."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict; :meth:`from_dict` is the inverse."""
        return dataclasses.asdict(self) | {"arch": self.arch.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a hint from the result of :meth:`to_dict`, or from its JSON."""
        values = {key: _tupled(value) for key, value in data.items()}
        return cls(**(values | {"arch": cls.arch_type.from_dict(data["arch"])}))

    @property
    def packed_tile(self) -> str:
        """Return the tile that a prepacked weight is packed for, as text; empty if not known.

        Configurations of the same function and tile read the same packed weight.
        """
        return ""

    def replaced(self, **values: Any) -> Self:
        """Return a copy with other ``values`` of some fields.

        It skips the constructor, because a ranking makes ten thousands of configurations and
        :func:`dataclasses.replace` takes ten times as long. A hint has no ``__post_init__``.
        """
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **values)
        return copy

    def without_prefetch(self) -> Self | None:
        """Return the configuration without weight prefetches; None when it has none."""
        return None

    def shown(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, except template and device."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in _NOT_SHOWN and getattr(self, field.name) != field.default
        }

    def __str__(self) -> str:
        return f"{self.template}({', '.join(f'{k}={v}' for k, v in self.shown().items())})"


def _tupled(value: Any) -> Any:
    """Convert lists, which JSON turns tuples into, back to tuples at any depth."""
    return tuple(map(_tupled, value)) if isinstance(value, list | tuple) else value
