"""Shared-memory layouts of wgmma operands: the fields of the matrix descriptor."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hopper.problem import K_BLOCK_BYTES

#: Swizzle mode of TMA and wgmma, by the bytes of a line.
SWIZZLE = {32: 1, 64: 2, 128: 3}


@dataclasses.dataclass(frozen=True)
class OperandLayout:
    """Layout of an operand in one pipeline stage, in units of 16 bytes.

    Attributes:
        k_major: Whether the operand is K-major, not MN-major.
        leading: Leading-dimension offset: between 64-row blocks of an MN-major operand.
        stride: Stride offset: between groups of 8 lines.
        swizzle: Swizzle mode: 1, 2, 3 for lines of 32, 64 and 128 bytes.
        atom: Offset between groups of 64 rows.
        steps: Offset of each wgmma K step.
    """

    k_major: bool
    leading: int
    stride: int
    swizzle: int
    atom: int
    steps: tuple[int, ...]


def layout_of(k_major: bool, tile_k: int) -> OperandLayout:
    """Return the layout with 128-byte lines, K-major or MN-major.

    Args:
        k_major: Whether the operand is K-major.
        tile_k: Elements of K in one stage.
    """
    atom = 64 * K_BLOCK_BYTES // 16
    if k_major:
        return OperandLayout(True, 1, 64, 3, atom, (0, 2, 4, 6))
    return OperandLayout(False, tile_k * 8, 64, 3, atom, (0, 128, 256, 384))


def layout_of_blocks(line: int, rows: int, k_bytes: int = K_BLOCK_BYTES) -> OperandLayout:
    """Return the layout of several K-major blocks of lines.

    Lines of 32 bytes: K step ``k`` is line block ``k``. Lines of 64 bytes: two K steps a block.

    Args:
        line: Bytes of a line: 32, 64 or 128.
        rows: Lines of a block, a multiple of 8.
        k_bytes: Bytes of a row in all blocks.
    """
    size = line // 16
    each = line // 32
    steps = tuple(k // each * rows * size + k % each * 2 for k in range(k_bytes // 32))
    return OperandLayout(True, 1, 8 * size, SWIZZLE[line], 64 * size, steps)
