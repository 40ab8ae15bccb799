"""CPU names of boards and clouds, with LLVM's target triple, CPU name and features."""

from __future__ import annotations

import dataclasses

#: LLVM's target triple of each supported instruction-set architecture.
TRIPLES = {
    "x86_64": "x86_64-linux-gnu",
    "aarch64": "aarch64-linux-gnu",
    "riscv64": "riscv64-linux-gnu",
    "hexagon": "hexagon-unknown-linux-musl",
}


@dataclasses.dataclass(frozen=True)
class NamedCpu:
    """A CPU with a well-known name.

    Attributes:
        isa: Instruction-set architecture, a key of :data:`TRIPLES`.
        mcpu: LLVM's CPU name.
        threads: Cores of the chip (on Hexagon, vector contexts); 0 if the name does not tell.
        mattr: Features in addition to ``mcpu``, in LLVM's notation.
    """

    isa: str
    mcpu: str
    threads: int
    mattr: tuple[str, ...] = ()


def _hexagon(version: str) -> NamedCpu:
    # Scalar IEEE 754 floats: the vector unit's qfloat format rounds differently, and emulators lack
    # it.
    vectors = (f"+hvx{version}", "+hvx-length128b", "-hvx-qfloat", "-hvx-ieee-fp")
    return NamedCpu("hexagon", f"hexagon{version}", 4, vectors)


_RV64GCV = ("+m", "+a", "+f", "+d", "+c", "+v")

NAMED = {
    "hexagon-v66": _hexagon("v66"),
    "hexagon-v68": _hexagon("v68"),
    "hexagon-v69": _hexagon("v69"),
    "hexagon-v73": _hexagon("v73"),
    "raspberry-pi-3": NamedCpu("aarch64", "cortex-a53", 4),
    "raspberry-pi-4": NamedCpu("aarch64", "cortex-a72", 4),
    "raspberry-pi-5": NamedCpu("aarch64", "cortex-a76", 4),
    "graviton2": NamedCpu("aarch64", "neoverse-n1", 64),
    "graviton3": NamedCpu("aarch64", "neoverse-v1", 64),
    "graviton4": NamedCpu("aarch64", "neoverse-v2", 96),
    "riscv64-rvv": NamedCpu("riscv64", "generic-rv64", 0, _RV64GCV),
    "spacemit-k1": NamedCpu("riscv64", "spacemit-x60", 8),
}
