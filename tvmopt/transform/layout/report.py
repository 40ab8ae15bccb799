"""What a layout conversion did: the module, what was skipped, and what moves at run time."""

from __future__ import annotations

import dataclasses

import tvm


@dataclasses.dataclass(frozen=True)
class LayoutChange:
    """One layout change of a tensor that was inserted, and happens at every run.

    Attributes:
        where: Name of the variable whose tensor changes, in the module before.
        shape: Its shape in the module before.
        dtype: Its element type.
        source: Layout it comes in, ``"NCHW"``.
        target: Layout it leaves in, ``"NCHW16c"``.
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
        skipped: Why a layer is computed in its original layout, by layer number.
        changes: The layout changes that were inserted, in order; reshapes that move nothing, and
            transposes that the module had before, are not among them.
    """

    mod: tvm.IRModule
    skipped: dict[int, str]
    changes: tuple[LayoutChange, ...]

    @property
    def count(self) -> int:
        """Number of inserted layout changes."""
        return len(self.changes)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors that change layout."""
        return sum(change.bytes for change in self.changes)
