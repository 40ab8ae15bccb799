"""Constants of a library, in a separate section that the system maps from the file.

The assembler includes them from a file (``.incbin``), so that neither LLVM nor the process that
loads the library copies them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import tvm

from tvmopt.runtime.native import ALIGNMENT_BYTES, aligned

#: Symbol of the first constant.
WEIGHTS_SYMBOL = "tvmopt_weights"

_SECTION = """\
    .section .tvmopt.weights, "a", %progbits
    .balign {alignment}
    .globl {symbol}
    .hidden {symbol}
    .type {symbol}, %object
{symbol}:
    .incbin "{file}"
    .zero {alignment}
    .size {symbol}, . - {symbol}
    .section .note.GNU-stack, "", %progbits
"""


class Weights:
    """Constants in the order of their addition; equal ones are stored once."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._offsets: dict[bytes, int] = {}
        self.size = 0

    def add(self, tensor: tvm.runtime.Tensor) -> int:
        """Return the offset of a constant in bytes."""
        array = np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
        key = hashlib.sha256(array.data).digest()
        if key not in self._offsets:
            self._offsets[key] = self.size
            self._arrays.append(array)
            self.size += aligned(array.size)
        return self._offsets[key]

    def write(self, folder: Path) -> Path:
        """Write the constants into ``folder``; return an assembler file that includes them."""
        binary, source = folder / "weights.bin", folder / "weights.s"
        with binary.open("wb") as file:
            for array in self._arrays:
                file.write(array.data)
                file.write(bytes(aligned(array.size) - array.size))
        source.write_text(
            _SECTION.format(symbol=WEIGHTS_SYMBOL, alignment=ALIGNMENT_BYTES, file=binary)
        )
        return source
