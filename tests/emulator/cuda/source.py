"""Translate CUDA source to C++ that runs the same kernel on a CPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tvmopt.errors import ConfigError

from .ptx import call_of

_ASM = re.compile(r"\b(?:asm|__asm__)\b\s*(?:volatile|__volatile__)?\s*\(")
_INCLUDE = re.compile(r"^\s*#include <(?:cuda|math_constants|mma|sm_\d+)[^>]*>.*\n", re.MULTILINE)
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
_SHARED = re.compile(
    r"(?<!extern )__shared__ (?:(?:__align__|alignas)\((\d+)\) )?([\w ]+?) (\w+)\[(\d+)\];"
)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_LITERAL = re.compile(r"\s*(?://[^\n]*\n\s*)*" + _STRING.pattern)
_OPERAND = re.compile(r'[\s,]*"[^"]*"\s*\(')
_ALIGNED = 128  # largest alignment of a shared-memory variable in bytes


def emulated(source: str, kernels: Mapping[str, Sequence[str]]) -> str:
    """Return C++ with a function ``__tvm_ffi_<kernel>`` for each kernel of CUDA ``source``.

    Args:
        source: CUDA source as TVM emits it.
        kernels: TVM's launch parameter tags of each kernel. The values of tags that have one follow
            the arguments of the kernel.

    Raises:
        ConfigError: When the source has an instruction that the emulator does not know.
    """
    text = _INCLUDE.sub("", source)
    text = _DYNAMIC.sub(r"\1* \2 = static_cast<\1*>(emu::dynamic_shared());", text)
    fixed: list[str] = []

    def on_shared(found: re.Match[str]) -> str:
        alignment, kind, name, extent = found.groups()
        fixed.append(f"{kind}[{extent}]")
        aligned = max(int(alignment or 0), 16)
        return f"auto& {name} = emu::shared_variable<{fixed[-1]}>({len(fixed)}, {aligned});"

    text = _without_asm(_SHARED.sub(on_shared, text))
    sizes = " + ".join(["0", *(f"sizeof({kind}) + {_ALIGNED}" for kind in fixed)])
    parts = ['#include "launch.h"', text, f"static constexpr unsigned emu_fixed = {sizes};"]
    for name, tags in kernels.items():
        listed = ", ".join([*(f'"{tag}"' for tag in tags), "nullptr"])
        parts.append(
            f"static const char* const emu_tags_{name}[] = {{{listed}}};\n"
            f'extern "C" int __tvm_ffi_{name}(void*, const TVMFFIAny* given, int count, TVMFFIAny*)'
            f" {{ return emu::launch({name}, emu_tags_{name}, given, count, emu_fixed); }}"
        )
    return "\n".join(parts) + "\n"


def _without_asm(text: str) -> str:
    made, at = [], 0
    while found := _ASM.search(text, at):
        end = _closing(text, found.end())
        made += [text[at : found.start()], _statement(text[found.end() : end])]
        at = text.index(";", end) + 1
    return "".join([*made, text[at:]])


def _closing(text: str, at: int) -> int:
    """Return the position of the parenthesis that closes the one open at ``at``; skip strings."""
    depth = 1
    while True:
        if text[at] == '"':
            string = _STRING.match(text, at)
            if string is None:
                raise ConfigError(f"asm must be closed, but got {text[at : at + 80]!r}")
            at = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
        at += 1


def _statement(body: str) -> str:
    template, at = "", 0
    while literal := _LITERAL.match(body, at):
        template += literal.group(1)
        at = literal.end()
    operands = []
    for section in _sections(body[at:])[:2]:
        place = 0
        while found := _OPERAND.match(section, place):
            place = _closing(section, found.end())
            operands.append(section[found.end() : place])
            place += 1
    return call_of(template, operands)


def _sections(text: str) -> list[str]:
    """Split at top-level colons into outputs, inputs and clobbers."""
    sections: list[str] = []
    depth = 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == ":" and depth == 0:
            sections.append("")
        elif sections:
            sections[-1] += letter
    return sections
