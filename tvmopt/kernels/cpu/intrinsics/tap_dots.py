"""TapDot: a dot-product instruction over neighbouring taps of a depthwise convolution.

The taps of one channel lie in one 32-bit lane: 4 int8 taps (VNNI, ``sdot``) or 2 int16 taps
(``vpmaddwd``, which every CPU with AVX2 has). Accumulators are exact, and wrap around.
"""

from __future__ import annotations

import dataclasses

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.intrinsics.base import DotIntrinsic
from tvmopt.kernels.cpu.intrinsics.sdot import SDOT
from tvmopt.kernels.cpu.intrinsics.vnni import VNNI

_FUNNEL_SHIFT = "avx512vbmi2"


@dataclasses.dataclass(frozen=True)
class TapDot:
    """An instruction ``accumulator[i] += sum over t of data[i, t] * weight[i, t]``.

    Attributes:
        name: Name in configurations and in the names of LLVM functions.
        isa: Instruction-set architecture, ``"x86_64"``, ``"aarch64"``.
        instruction: Mnemonic in the disassembly.
        features: Required CPU features, in LLVM's names.
        llvm_name: LLVM's intrinsic.
        lanes: Channels per vector register.
        taps: Taps per lane, 4 or 2.
        signed: Whether the instruction takes the data as signed.
        accumulates: Whether the instruction adds to the accumulator; otherwise an add follows.
    """

    name: str
    isa: str
    instruction: str
    features: tuple[str, ...]
    llvm_name: str
    lanes: int
    taps: int
    signed: bool
    accumulates: bool = True

    @property
    def tap_bits(self) -> int:
        """Bits of a tap in its lane."""
        return 32 // self.taps

    def slide_uops(self, arch: CpuArch) -> int:
        """Return the instructions that shift one tap into a lane: a funnel shift, or three."""
        return 1 if self.isa == "x86_64" and _FUNNEL_SHIFT in arch.features() else 3

    @property
    def dot_uops(self) -> int:
        """Instructions per dot product."""
        return 1 if self.accumulates else 2


def _of(dot: DotIntrinsic) -> TapDot:
    """Return the instruction of ``dot`` for taps; its weight is signed."""
    return TapDot(
        name=dot.name.removeprefix("tvmopt.").replace("_", ""),
        isa=dot.isa,
        instruction=dot.instruction,
        features=dot.features,
        llvm_name=dot.llvm_name,
        lanes=dot.lanes,
        taps=dot.depth,
        signed=dot.data == "int8",
    )


def _pmaddwd(lanes: int, features: tuple[str, ...], llvm_name: str) -> TapDot:
    return TapDot(
        name=f"pmaddwd{32 * lanes}",
        isa="x86_64",
        instruction="vpmaddwd",
        features=features,
        llvm_name=llvm_name,
        lanes=lanes,
        taps=2,
        signed=True,
        accumulates=False,
    )


#: All instructions; the best of a CPU comes first. The weight is int8.
TAP_DOTS: tuple[TapDot, ...] = (
    *(_of(dot) for dot in (*VNNI, *SDOT) if dot.weight == "int8"),
    _pmaddwd(16, ("avx512bw",), "llvm.x86.avx512.pmaddw.d.512"),
    _pmaddwd(8, ("avx2",), "llvm.x86.avx2.pmadd.wd"),
)


def tap_dot_named(name: str) -> TapDot:
    """Return the instruction ``name``.

    Raises:
        KeyError: When there is none of this name.
    """
    return {dot.name: dot for dot in TAP_DOTS}[name]


def find_tap_dot(arch: CpuArch, data: str) -> TapDot | None:
    """Return the best instruction of ``arch``; None if it has none, or only for longer vectors.

    Args:
        arch: The CPU.
        data: Dtype of the data; an instruction that takes it as it is comes first.
    """
    features = arch.features()
    usable = [
        dot
        for dot in TAP_DOTS
        if dot.isa == arch.isa
        and features >= set(dot.features)
        and 32 * dot.lanes <= arch.simd_bits
    ]
    alike = [dot for dot in usable if (dot.lanes, dot.taps) == (usable[0].lanes, usable[0].taps)]
    exact = [dot for dot in alike if dot.signed == (data == "int8")]
    return next(iter([*exact, *alike]), None)
