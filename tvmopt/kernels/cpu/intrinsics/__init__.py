"""Tensor intrinsics: dot-product instructions (VNNI, sdot, vrmpy, RVV) and AMX tiles.

One file per instruction-set extension. A schedule registers an intrinsic with TVM at its first use.
"""

from tvmopt.kernels.cpu.intrinsics.amx_configuration import with_tile_configuration
from tvmopt.kernels.cpu.intrinsics.base import DotIntrinsic
from tvmopt.kernels.cpu.intrinsics.choose import (
    DOTS,
    TILES,
    dot_named,
    find_dot,
    find_tile,
    multipliable,
    tiled,
)
from tvmopt.kernels.cpu.intrinsics.tile import TileIntrinsic, largest_step
from tvmopt.kernels.cpu.intrinsics.used import instructions_used

__all__ = [
    "DOTS",
    "TILES",
    "DotIntrinsic",
    "TileIntrinsic",
    "dot_named",
    "find_dot",
    "find_tile",
    "instructions_used",
    "largest_step",
    "multipliable",
    "tiled",
    "with_tile_configuration",
]
