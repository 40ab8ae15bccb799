"""LLVM's names of CPU features, and Linux's names of the same.

A library is built from LLVM's names and refused at load from Linux's, since the machine that
loads it has no LLVM. Only features that code generation uses matter; LLVM's tuning hints
(``fast-gather``, ``prefer-256-bit``, ...) change nothing a CPU could lack.
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
}
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
    },
}  # fmt: skip


def required_cpu_flags(isa: str, llvm_features: Iterable[str]) -> tuple[str, ...]:
    """Features that code for a CPU with ``llvm_features`` may use, in Linux's names, sorted."""
    matters = _MATTERS.get(isa)
    if matters is None:
        return ()
    names = _LINUX_NAME.get(isa, {})
    return tuple(
        sorted(
            names.get(feature, re.sub(r"[-.]", "_", feature))
            for feature in llvm_features
            if matters.match(feature)
        )
    )
