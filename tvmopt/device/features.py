"""CPU features: map LLVM's names to Linux's CPU flags.

Compilation uses LLVM's names. The load-time check of a library uses Linux's flags, because the
machine that loads it has no LLVM. Only features that code generation uses count; LLVM's tuning
hints (``fast-gather``, ``prefer-256-bit``, ...) are ignored. On RISC-V, Linux does not report
vector lengths beyond V's minimum, so the check rejects code for longer vectors. Hexagon has no
Linux flags and keeps LLVM's names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_MATTERS = {
    "x86_64": re.compile(
        r"^(sse|ssse|avx|amx|fma|f16c|bmi|gfni|vaes|vpclmulqdq|popcnt|movbe|lzcnt|aes$|xop|"
        r"egpr|ccmp|ndd|nf$|ppx|push2pop2|zu$|cf$)"
    ),
    "aarch64": re.compile(
        r"^(neon|fp-armv8|fullfp16|fp16fml|dotprod|i8mm|bf16|sve|sme|lse|rdm|crc|complxnum|jsconv)"
    ),
    "riscv64": re.compile(r"^([imafdcv]$|zb[abcs]$|zbk|zf|zicond$|zk|zv)"),
    "hexagon": re.compile(r"^(hvx|v\d)"),
}
# Extensions that V implies; Linux need not list them.
_PART_OF_V = re.compile(r"^(zve\d+[xfd]|zvl(32|64|128)b)$")
_LINUX_NAME = {
    "x86_64": {
        "sse3": "pni", "lzcnt": "abm", "bmi": "bmi1", "avxvnni": "avx_vnni",
        "avxvnniint8": "avx_vnni_int8", "avxvnniint16": "avx_vnni_int16",
        "avxifma": "avx_ifma", "avxneconvert": "avx_ne_convert",
        "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16",
        "avx512vbmi2": "avx512_vbmi2", "avx512bitalg": "avx512_bitalg",
        "avx512vpopcntdq": "avx512_vpopcntdq", "avx512vp2intersect": "avx512_vp2intersect",
    },
    "aarch64": {
        "neon": "asimd", "fp-armv8": "fp", "fullfp16": "asimdhp", "fp16fml": "asimdfhm",
        "dotprod": "asimddp", "lse": "atomics", "rdm": "asimdrdm", "crc": "crc32",
        "complxnum": "fcma", "jsconv": "jscvt", "sve2-aes": "sveaes",
        "lse2": "uscat", "sve-bitperm": "svebitperm", "sme-f64f64": "smef64f64",
        "sme-i16i64": "smei16i64",
    },
}  # fmt: skip


def required_cpu_flags(isa: str, llvm_features: Iterable[str]) -> tuple[str, ...]:
    """Return the Linux CPU flags that code for a CPU with ``llvm_features`` requires, sorted."""
    matters = _MATTERS.get(isa)
    if matters is None:
        return ()
    names = _LINUX_NAME.get(isa, {})
    needed = {feature for feature in llvm_features if matters.match(feature)}
    if isa == "riscv64" and "v" in needed:
        needed = {feature for feature in needed if not _PART_OF_V.match(feature)}
    return tuple(sorted(names.get(feature, re.sub(r"[-.]", "_", feature)) for feature in needed))


def vector_registers(isa: str, flags: Iterable[str]) -> tuple[int, int]:
    """Return (width in bits, number) of the vector registers of a CPU.

    Args:
        isa: Instruction-set architecture.
        flags: Its flags from :func:`required_cpu_flags`.
    """
    flags = set(flags)
    if isa == "x86_64":
        bits = 512 if "avx512f" in flags else 256 if "avx2" in flags else 128
        return bits, 32 if bits == 512 else 16
    if isa == "hexagon":
        return 1024 if "hvx_length128b" in flags else 512 if "hvx_length64b" in flags else 64, 32
    if isa == "riscv64":
        longer = [int(flag[3:-1]) for flag in flags if re.fullmatch(r"zvl\d+b", flag)]
        return max([64, *([128] if "v" in flags else []), *longer]), 32
    return 128, 32
