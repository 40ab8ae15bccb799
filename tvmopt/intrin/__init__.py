"""Tensor intrinsics: instructions that multiply and add several narrow numbers at once.

One family a file. An intrinsic is registered with TVM when a schedule first uses it.
"""

from .amx_configuration import with_tile_configuration
from .base import DotIntrinsic
from .choose import DOTS, TILES, dot_named, find_dot, find_tile, multipliable
from .tile import TileIntrinsic, largest_step
from .used import instructions_used

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
    "with_tile_configuration",
]
