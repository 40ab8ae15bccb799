"""How the operands of the instructions lie in one stage of shared memory."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hopper.config import DEPTH_BYTES

#: The pattern in which the copy engine writes lines, by their bytes.
SWIZZLE = {32: 1, 64: 2, 128: 3}


@dataclasses.dataclass(frozen=True)
class Lines:
    """How an operand lies in one stage, in units of 16 bytes.

    Attributes:
        leading: Distance of blocks of 64 rows, where rows are contiguous.
        stride: Distance of groups of 8 lines.
        swizzle: The pattern in which 16-byte pieces change places: 1, 2, 3 for lines of 32, 64 and
            128 bytes.
        atom: Distance of groups of 64 rows.
        steps: Where each of the four steps of the depth begins.
    """

    leading: int
    stride: int
    swizzle: int
    atom: int
    steps: tuple[int, ...]


def lines_of(major: bool, depth: int) -> Lines:
    """The usual form: lines of 128 bytes, along the depth or (``major`` false) along the rows.

    Args:
        major: Whether the operand is contiguous along the depth.
        depth: Elements of the depth in one stage.
    """
    atom = 64 * DEPTH_BYTES // 16
    if major:
        return Lines(1, 64, 3, atom, (0, 2, 4, 6))
    return Lines(depth * 8, 64, 3, atom, (0, 128, 256, 384))


def blocks_of(line: int, rows: int) -> Lines:
    """Several blocks of rows, each with short lines along the depth.

    Args:
        line: Bytes of a line: 32, 64 or 128.
        rows: Lines of a block, a multiple of 64.
    """
    size = line // 16
    each = line // 32
    steps = tuple(k // each * rows * size + k % each * 2 for k in range(DEPTH_BYTES // 32))
    return Lines(1, 8 * size, SWIZZLE[line], 64 * size, steps)
