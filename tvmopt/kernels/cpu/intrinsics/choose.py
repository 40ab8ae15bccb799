"""Which intrinsic a CPU has for a pair of types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import TypeVar

from tvm import tirx
from tvm.target import Target

from tvmopt import host
from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.intrinsics.amx import AMX
from tvmopt.kernels.cpu.intrinsics.avx512_bf16 import AVX512_BF16
from tvmopt.kernels.cpu.intrinsics.base import DotIntrinsic
from tvmopt.kernels.cpu.intrinsics.calls import callees
from tvmopt.kernels.cpu.intrinsics.llvm_functions import with_llvm_functions
from tvmopt.kernels.cpu.intrinsics.rvv import RVV
from tvmopt.kernels.cpu.intrinsics.sdot import SDOT
from tvmopt.kernels.cpu.intrinsics.tile import TileIntrinsic
from tvmopt.kernels.cpu.intrinsics.vnni import VNNI
from tvmopt.kernels.cpu.intrinsics.vrmpy import VRMPY
from tvmopt.kernels.cuda.intrinsics import mma

_Intrinsic = TypeVar("_Intrinsic", DotIntrinsic, TileIntrinsic)

#: Every dot-product intrinsic, within a family the widest first.
DOTS: tuple[DotIntrinsic, ...] = (*VNNI, *AVX512_BF16, *SDOT, *VRMPY, *RVV)

#: Every tile intrinsic, with the largest block of tiles.
TILES: tuple[TileIntrinsic, ...] = AMX


def find_dot(arch: CpuArch, data: str, weight: str) -> DotIntrinsic | None:
    """The best intrinsic of ``arch`` for these types; None when it has none.

    Args:
        arch: The CPU.
        data: Type of the operand that is broadcast.
        weight: Type of the operand that is read as vectors.
    """
    usable = _usable(DOTS, arch.isa, arch.features())
    return next((dot for dot in usable if (dot.data, dot.weight) == (data, weight)), None)


def find_tile(arch: CpuArch, data: str, weight: str) -> TileIntrinsic | None:
    """The tile intrinsic of ``arch`` for these types; None when it has none.

    Its shape is the largest; ``dataclasses.replace`` gives another.

    Args:
        arch: The CPU.
        data: Type of the operand whose rows may be anywhere.
        weight: Type of the operand that is packed.
    """
    usable = _usable(TILES, arch.isa, arch.features())
    return next((tile for tile in usable if (tile.data, tile.weight) == (data, weight)), None)


def multipliable(target: Target) -> frozenset[tuple[str, str]]:
    """Types of data and weight that ``target`` has an instruction for; empty without any."""
    from tvm.target.codegen import llvm_get_cpu_features

    if target.kind.name != "llvm":
        return frozenset()
    features = {str(feature) for feature in llvm_get_cpu_features(target)}
    triple = str(target.attrs["mtriple"]) if "mtriple" in target.attrs else ""
    isa = triple.split("-")[0] or host.isa()
    dots = {(dot.data, dot.weight) for dot in _usable(DOTS, isa, features)}
    return frozenset(dots | {(t.data, t.weight) for t in _usable(TILES, isa, features)})


def _usable(intrinsics: Iterable[_Intrinsic], isa: str, features: Set[str]) -> Iterator[_Intrinsic]:
    """Those that a CPU has, in their order."""
    return (one for one in intrinsics if one.isa == isa and features >= set(one.features))


def dot_named(name: str) -> DotIntrinsic:
    """The intrinsic of that name.

    Raises:
        KeyError: When there is none.
    """
    return {dot.name: dot for dot in DOTS}[name]


def with_intrinsic_functions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with the definitions of the LLVM functions that its intrinsics call."""
    names = callees(func.body)
    sources = sorted({dot.function for dot in DOTS if names & dot.defines})
    return with_llvm_functions(func, sources) if sources else func


def register_used(text: str) -> None:
    """Register the intrinsics whose names stand in ``text``, so that traces in it can replay."""
    for dot in DOTS:
        if f'"{dot.name}"' in text:
            dot.register()
    for tile in TILES:
        tile.register_used(text)
    mma.register_used(text)
