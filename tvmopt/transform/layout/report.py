"""Report of a layout conversion: the module, skipped layers, and conversions at run time."""

from __future__ import annotations

import dataclasses

import tvm


@dataclasses.dataclass(frozen=True)
class LayoutChange:
    """One inserted layout conversion of an activation, executed at every run.

    Attributes:
        where: Variable whose tensor is converted, in the module before.
        shape: Its shape in the module before.
        dtype: Its dtype.
        source: Layout before, such as ``"NCHW"``.
        target: Layout after, such as ``"NCHW16c"``.
        bytes: Size of the tensor in bytes, which are read once and written once.
    """

    where: str
    shape: tuple[int, ...]
    dtype: str
    source: str
    target: str
    bytes: int

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"{self.where} ({shape} {self.dtype}): {self.source} -> {self.target}"


@dataclasses.dataclass(frozen=True)
class LayoutResult:
    """Result of :func:`tvmopt.transform.layout.convert_layout_with_report`.

    Attributes:
        mod: The converted module.
        skipped: Reason why a layer keeps its original layout, by layer index.
        changes: The inserted layout conversions, in order. Reshapes, which move no data, and
            transposes of the original module are not included.
    """

    mod: tvm.IRModule
    skipped: dict[int, str]
    changes: tuple[LayoutChange, ...]

    @property
    def count(self) -> int:
        """Number of inserted layout conversions."""
        return len(self.changes)

    @property
    def bytes(self) -> int:
        """Bytes of all converted tensors."""
        return sum(change.bytes for change in self.changes)
