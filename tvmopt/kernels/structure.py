"""Functions as keys of a cache: functions of equal structure are equal."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

import tvm_ffi
from tvm import tirx

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Structure(Generic[T]):
    """A function as a key, with what a miss of the cache needs.

    Attributes:
        func: A TensorIR function.
        carried: What does not count for equality.
    """

    func: tirx.PrimFunc
    carried: T

    @property
    def name(self) -> str:
        """Hash of the structure as 16 hex digits, the same in each process."""
        return f"{tvm_ffi.structural_hash(self.func):016x}"

    def __hash__(self) -> int:
        return int(tvm_ffi.structural_hash(self.func))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and bool(
            tvm_ffi.structural_equal(self.func, other.func)
        )
