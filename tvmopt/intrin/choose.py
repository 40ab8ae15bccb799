"""Which intrinsic a CPU has for a pair of types."""

from __future__ import annotations

from tvmopt.arch.cpu import CpuArch

from .amx import AMX
from .avx512_bf16 import AVX512_BF16
from .base import DotIntrinsic
from .tile import TileIntrinsic
from .vnni import VNNI

#: Every dot-product intrinsic, within a family the widest first.
DOTS: tuple[DotIntrinsic, ...] = (*VNNI, *AVX512_BF16)

#: Every tile intrinsic, with the largest block of tiles.
TILES: tuple[TileIntrinsic, ...] = AMX


def find_dot(arch: CpuArch, data: str, weight: str) -> DotIntrinsic | None:
    """The best intrinsic of ``arch`` for these types; None when it has none.

    Args:
        arch: The CPU.
        data: Type of the operand that is broadcast.
        weight: Type of the operand that is read as vectors.
    """
    features = arch.features()
    for dot in DOTS:
        if (
            dot.isa == arch.isa
            and (dot.data, dot.weight) == (data, weight)
            and features.issuperset(dot.features)
        ):
            return dot
    return None


def dot_named(name: str) -> DotIntrinsic:
    """The intrinsic of that name.

    Raises:
        KeyError: When there is none.
    """
    return next(iter([dot for dot in DOTS if dot.name == name]))


def find_tile(arch: CpuArch, data: str, weight: str) -> TileIntrinsic | None:
    """The tile intrinsic of ``arch`` for these types; None when it has none.

    Its shape is the largest; ``dataclasses.replace`` gives another.

    Args:
        arch: The CPU.
        data: Type of the operand whose rows may be anywhere.
        weight: Type of the operand that is packed.
    """
    features = arch.features()
    for tile in TILES:
        if (
            tile.isa == arch.isa
            and (tile.data, tile.weight) == (data, weight)
            and features.issuperset(tile.features)
        ):
            return tile
    return None
