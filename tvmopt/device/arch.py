"""Arch: what CPU and GPU descriptors have in common."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Hashable
from typing import Any, ClassVar, Self


@dataclasses.dataclass(frozen=True)
class Arch(abc.ABC):
    """Descriptor of a CPU or GPU for schedules and cost models.

    Attributes:
        kind: TVM's target kind, ``"llvm"`` or ``"cuda"``.
        layout: Layout that its convolution kernels require; empty where several compete.
        is_on_boards: Whether a board behind RPC can measure in this machine's place.
        needs_fallback: Whether a library has a fallback function with direct convolutions only.
    """

    kind: ClassVar[str]
    layout: ClassVar[str] = ""
    is_on_boards: ClassVar[bool] = False
    needs_fallback: ClassVar[bool] = False

    @property
    def cost_parameters(self) -> Hashable:
        """Fitted parameters of the cost models that equality of two descriptors ignores."""
        return None

    @abc.abstractmethod
    def to_tvm(self) -> Any:
        """Return the ``tvm.target.Target`` of the device."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict; :meth:`from_dict` is the inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a descriptor from the result of :meth:`to_dict`, or from its JSON."""
        return cls(**{key: tuple(v) if isinstance(v, list) else v for key, v in data.items()})
