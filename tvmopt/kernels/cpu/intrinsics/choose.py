"""Select the tensor intrinsic of a CPU for a pair of operand dtypes."""

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
from tvmopt.kernels.cpu.intrinsics.depthwise import depthwise_sources, register_used_depthwise
from tvmopt.kernels.cpu.intrinsics.llvm_functions import with_llvm_functions
from tvmopt.kernels.cpu.intrinsics.pmaddubsw import PMADDUBSW
from tvmopt.kernels.cpu.intrinsics.pmaddwd import PMADDWD
from tvmopt.kernels.cpu.intrinsics.rvv import RVV
from tvmopt.kernels.cpu.intrinsics.sdot import SDOT
from tvmopt.kernels.cpu.intrinsics.tile import TileIntrinsic
from tvmopt.kernels.cpu.intrinsics.vnni import VNNI
from tvmopt.kernels.cpu.intrinsics.vrmpy import VRMPY
from tvmopt.kernels.cuda.intrinsics import mma

_Intrinsic = TypeVar("_Intrinsic", DotIntrinsic, TileIntrinsic)

#: All dot-product intrinsics; within one extension the widest first, and the fastest extension of
#: an instruction set first.
DOTS: tuple[DotIntrinsic, ...] = (
    *VNNI,
    *PMADDUBSW,
    *PMADDWD,
    *AVX512_BF16,
    *SDOT,
    *VRMPY,
    *RVV,
)

#: All tile intrinsics, each with its largest block of tiles.
TILES: tuple[TileIntrinsic, ...] = AMX


def find_dot(
    arch: CpuArch, data: str, weight: str, exact_pairs: bool = False
) -> DotIntrinsic | None:
    """Return the widest dot-product intrinsic of ``arch`` for the dtypes; None if there is none.

    Intrinsics that are slower than vector FMAs on ``arch`` do not count.

    Args:
        arch: The CPU.
        data: Dtype of the broadcast operand.
        weight: Dtype of the vector operand.
        exact_pairs: Whether no pair of products saturates in int16, see
            :mod:`tvmopt.kernels.exact_pairs`.
    """
    usable = _usable_dots(arch.isa, arch.features())
    return next(
        (
            dot
            for dot in usable
            if (dot.data, dot.weight) == (data, weight)
            and (exact_pairs or not dot.exact_pairs_only)
        ),
        None,
    )


def find_tile(arch: CpuArch, data: str, weight: str) -> TileIntrinsic | None:
    """Return the tile intrinsic of ``arch`` for the dtypes; None if there is none.

    It has the largest shape; ``dataclasses.replace`` changes the shape.

    Args:
        arch: The CPU.
        data: Dtype of the operand with strided rows.
        weight: Dtype of the packed operand.
    """
    usable = _usable(TILES, arch.isa, arch.features())
    return next((tile for tile in usable if (tile.data, tile.weight) == (data, weight)), None)


def multipliable(target: Target) -> frozenset[tuple[str, str]]:
    """Return the (data, weight) dtypes that ``target`` has a dot-product or tile intrinsic for."""
    return tiled(target) | dotted(target)


def dotted(target: Target) -> frozenset[tuple[str, str]]:
    """Return the (data, weight) dtypes that ``target`` has a dot-product intrinsic for."""
    dots = _usable_dots(*_isa_and_features(target))
    return frozenset((dot.data, dot.weight) for dot in dots)


def tiled(target: Target) -> frozenset[tuple[str, str]]:
    """Return the (data, weight) dtypes that ``target`` has a tile intrinsic for."""
    return frozenset((t.data, t.weight) for t in _usable(TILES, *_isa_and_features(target)))


def wants_exact_pairs(target: Target) -> bool:
    """Return whether the first dot product of ``target`` for u8 x s8 needs exact pairs."""
    usable = _usable_dots(*_isa_and_features(target))
    best = next((dot for dot in usable if (dot.data, dot.weight) == ("uint8", "int8")), None)
    return best is not None and best.exact_pairs_only


def _isa_and_features(target: Target) -> tuple[str, set[str]]:
    """Return the architecture of a CPU and its features; nothing for a target of another kind."""
    from tvm.target.codegen import llvm_get_cpu_features

    if target.kind.name != "llvm":
        return "", set()
    triple = str(target.attrs["mtriple"]) if "mtriple" in target.attrs else ""
    features = {str(feature) for feature in llvm_get_cpu_features(target)}
    return triple.split("-")[0] or host.isa(), features


def _usable(intrinsics: Iterable[_Intrinsic], isa: str, features: Set[str]) -> Iterator[_Intrinsic]:
    """Yield the intrinsics that a CPU with ``isa`` and ``features`` supports, in order."""
    return (one for one in intrinsics if one.isa == isa and features >= set(one.features))


def _usable_dots(isa: str, features: Set[str]) -> Iterator[DotIntrinsic]:
    """Yield the dot-product intrinsics that a CPU supports and that are fast on it, in order."""
    return (dot for dot in _usable(DOTS, isa, features) if not features & set(dot.slow_with))


def dot_named(name: str) -> DotIntrinsic:
    """Return the dot-product intrinsic ``name``.

    Raises:
        KeyError: When there is none of this name.
    """
    return {dot.name: dot for dot in DOTS}[name]


def with_intrinsic_functions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``func`` with definitions of the LLVM functions that its intrinsics call."""
    names = callees(func.body)
    sources = sorted({dot.function for dot in DOTS if names & dot.defines})
    sources += depthwise_sources(names)
    return with_llvm_functions(func, sources) if sources else func


def register_used(text: str) -> None:
    """Register the intrinsics named in ``text`` (JSON), so that its traces can be replayed."""
    for dot in DOTS:
        if f'"{dot.name}"' in text:
            dot.register()
    for tile in TILES:
        tile.register_used(text)
    register_used_depthwise(text)
    mma.register_used(text)
