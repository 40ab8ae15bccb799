"""Which intrinsic a CPU has for a pair of types."""

from __future__ import annotations

from tvmopt.arch.cpu import CpuArch

from .avx512_bf16 import AVX512_BF16
from .base import DotIntrinsic
from .rvv import RVV
from .sdot import SDOT
from .vnni import VNNI
from .vrmpy import VRMPY

#: Every dot-product intrinsic, within a family the widest first.
DOTS: tuple[DotIntrinsic, ...] = (*VNNI, *AVX512_BF16, *SDOT, *VRMPY, *RVV)


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
