"""Hint: one configuration of a kernel family for one device, serialisable."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
from typing import Any, ClassVar, Self

_NOT_SHOWN = ("template", "arch")


@dataclasses.dataclass(frozen=True)
class Hint(abc.ABC):
    """A configuration, complete enough to emit the kernel of a function from it alone.

    Attributes:
        template: Name of the kernel family.
        arch: The device that the numbers were chosen for.
    """

    arch_type: ClassVar[type]

    template: str
    arch: Any

    @property
    @abc.abstractmethod
    def group(self) -> tuple[object, ...]:
        """What configurations have in common for which the cost model errs alike."""

    @property
    @abc.abstractmethod
    def features(self) -> list[float]:
        """The configuration in numbers, for the learned ranker."""

    @property
    def config_id(self) -> str:
        """Twelve hexadecimal digits that name this configuration."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; :meth:`from_dict` reverses it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a hint from :meth:`to_dict`, or from its JSON."""
        values = {key: _tupled(value) for key, value in data.items()}
        arch = {key: _tupled(value) for key, value in values["arch"].items()}
        return cls(**(values | {"arch": cls.arch_type(**arch)}))

    def shown(self) -> dict[str, Any]:
        """The fields that differ from their defaults, without template and device."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in _NOT_SHOWN and getattr(self, field.name) != field.default
        }

    def __str__(self) -> str:
        return f"{self.template}({', '.join(f'{k}={v}' for k, v in self.shown().items())})"


def _tupled(value: Any) -> Any:
    """Tuples for the lists that JSON makes of them, at any depth."""
    return tuple(map(_tupled, value)) if isinstance(value, list | tuple) else value
