"""Shared-memory layouts of Q, K, V and the output: lines of 64 or 128 bytes of the head size.

A tile of rows x head size lies in blocks, each one swizzle atom wide::

    head size 128, lines of 128 bytes          head size 96, lines of 64 bytes
    block 0   row 0: elements 0 .. 63          block 0   row 0: elements 0 .. 31
              row 1: elements 0 .. 63                    row 1: elements 0 .. 31
              ...                                        ...
    block 1   row 0: elements 64 .. 127        block 1   row 0: elements 32 .. 63
              ...                                        ...

One TMA box is one block. TMA fills columns beyond the head size with zeros, and does not store
them.
"""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hopper.smem_layout import SWIZZLE, OperandLayout, layout_of_blocks

_BYTES = 2  # of an element


def padded_size(size: int) -> int:
    """Return the head size in shared memory, a multiple of 32 elements (64 bytes)."""
    return -(-size // 32) * 32


@dataclasses.dataclass(frozen=True)
class OperandTile:
    """A tile of rows x head size in shared memory.

    Attributes:
        rows: Rows: queries or keys.
        size: Head size.
    """

    rows: int
    size: int

    @property
    def padded(self) -> int:
        """Head size in shared memory."""
        return padded_size(self.size)

    @property
    def line(self) -> int:
        """Bytes of a line, which is the swizzle atom."""
        return 64 if self.padded * _BYTES % 128 else 128

    @property
    def width(self) -> int:
        """Elements of a line."""
        return self.line // _BYTES

    @property
    def blocks(self) -> int:
        """Blocks of one line width."""
        return self.padded // self.width

    @property
    def elements(self) -> int:
        """Elements of the tile."""
        return self.rows * self.padded

    @property
    def swizzle(self) -> int:
        """Swizzle mode of TMA and wgmma."""
        return SWIZZLE[self.line]

    def k_major(self) -> OperandLayout:
        """Return the layout as a K-major operand: the head size is the reduction (Q and K)."""
        return layout_of_blocks(self.line, self.rows, self.padded * _BYTES)

    def mn_major(self) -> OperandLayout:
        """Return the layout as an MN-major operand: the rows are the reduction (V)."""
        steps = tuple(step * self.line for step in range(self.rows // 16))
        return OperandLayout(
            False, self.rows * self.line // 16, 8 * self.line // 16, self.swizzle, 0, steps
        )
