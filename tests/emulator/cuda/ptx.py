"""Translate inline PTX to calls of the emulator: one table row per instruction."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tvmopt.errors import ConfigError

_REG = r"(%\d+|\d+)"
_LIST = r"\{([^{}]*)\}"
_TYPES = ("f16", "bf16", "e4m3", "e5m2", "s8", "u8", "tf32")
_STORED = {"f32": "float", "u32": "uint32_t", "s32": "int", "b32": "uint32_t"}
_AREA = rf"\[{_REG}, {_LIST}\]"

# No-ops here: empty statements, which bind only the compiler; fences (memory is sequentially
# consistent), prefetch, register counts, PDL.
_NOTHING = re.compile(
    r"(fence\.mbarrier_init|prefetch|setmaxnreg|griddepcontrol\.launch_dependents|wgmma\.fence)\b.*"
)

# Instruction pattern, and the call that emulates it. ``&{...}`` takes the address of each result.
_CALLS = [
    (rf"mbarrier\.init\.shared\.b64 \[{_REG}\], {_REG}", r"emu::mbarrier_init(\1, \2)"),
    (
        rf"mbarrier\.arrive\.expect_tx\.shared\.b64 _, \[{_REG}\], {_REG}",
        r"emu::mbarrier_arrive_expect_tx(\1, \2)",
    ),
    (rf"mbarrier\.arrive\.shared\.b64 _, \[{_REG}\], {_REG}", r"emu::mbarrier_arrive(\1, \2)"),
    (rf"mbarrier\.arrive\.shared(?:::cluster)?\.b64 _, \[{_REG}\]", r"emu::mbarrier_arrive(\1)"),
    (
        rf".*\bmbarrier\.try_wait\.parity[\w.:]* \w+, \[{_REG}\], {_REG}, .*bra.*",
        r"emu::mbarrier_wait(\1, \2)",
    ),
    (r"fence\.proxy\.async[\w.:]*", r"emu::fence_proxy_async()"),
    (r"griddepcontrol\.wait", r"emu::griddepcontrol_wait()"),
    (rf"bar\.sync {_REG}, {_REG}", r"emu::bar_sync(\1, \2)"),
    (rf"bar\.arrive {_REG}, {_REG}", r"emu::bar_arrive(\1, \2)"),
    (rf"ex2\.approx\.ftz\.f32 {_REG}, {_REG}", r"\1 = emu::exp2_flushed(\2)"),
    (rf"bar\.sync {_REG}", r"emu::bar_sync_all(\1)"),
    (r"barrier\.cluster\.arrive[\w.]*", r"emu::cluster_arrive()"),
    (r"barrier\.cluster\.wait[\w.]*", r"emu::cluster_wait()"),
    (
        rf"cp\.async\.bulk\.tensor\.\dd\.shared::cluster\.global\.mbarrier::complete_tx::bytes"
        rf" \[{_REG}\], {_AREA}, \[{_REG}\]",
        r"emu::tma_load(\1, \2, {\3}, \4)",
    ),
    (
        rf"cp\.async\.bulk\.tensor\.\dd\.shared::cluster\.global\.mbarrier::complete_tx::bytes"
        rf"\.multicast::cluster \[{_REG}\], {_AREA}, \[{_REG}\], {_REG}",
        r"emu::tma_load(\1, \2, {\3}, \4, \5)",
    ),
    (
        rf"cp\.async\.bulk\.tensor\.\dd\.global\.shared::cta(?:\.tile)?\.bulk_group"
        rf" {_AREA}, \[{_REG}\]",
        r"emu::tma_store(\1, {\2}, \3)",
    ),
    (r"cp\.async\.bulk\.commit_group", r"emu::commit_group(emu::self->bulk)"),
    (rf"cp\.async\.bulk\.wait_group(?:\.read)? {_REG}", r"emu::wait_groups(emu::self->bulk, \1)"),
    (
        rf"cp\.async\.c[ag]\.shared\.global[\w.:]* \[{_REG}\], \[{_REG}\], {_REG}",
        r"emu::cp_async(\1, \2, \3, \3)",
    ),
    (
        rf"cp\.async\.c[ag]\.shared\.global[\w.:]* \[{_REG}\], \[{_REG}\], {_REG}, {_REG}",
        r"emu::cp_async(\1, \2, \3, \4)",
    ),
    (r"cp\.async\.commit_group", r"emu::commit_group(emu::self->copies)"),
    (rf"cp\.async\.wait_group {_REG}", r"emu::wait_groups(emu::self->copies, \1)"),
    (rf"mapa\.shared::cluster\.u32 {_REG}, {_REG}, {_REG}", r"\1 = emu::mapa(\2, \3)"),
    (rf"mov\.u32 {_REG}, %+clusterid\.x", r"\1 = blockIdx.x / emu::machine.cluster_size.x"),
    (rf"mov\.u32 {_REG}, %+cluster_ctarank", r"\1 = emu::self->block->rank"),
    (r".*\belect\.sync _\|\w+, 0xffffffff; selp\.b32 (%\d+), 1, 0, .*", r"\1 = emu::elected()"),
    (rf"ldmatrix\.sync\.aligned\.m8n8\.x\d\.shared\.b16 {_LIST}, \[{_REG}\]",
     r"emu::ldmatrix(&{\1}, \2, false)"),
    (rf"ldmatrix\.sync\.aligned\.m8n8\.x\d\.trans\.shared\.b16 {_LIST}, \[{_REG}\]",
     r"emu::ldmatrix(&{\1}, \2, true)"),
    (rf"stmatrix\.sync\.aligned\.m8n8\.x\d\.shared\.b16 \[{_REG}\], {_LIST}",
     r"emu::stmatrix(\1, {\2}, false)"),
    (rf"stmatrix\.sync\.aligned\.m8n8\.x\d\.trans\.shared\.b16 \[{_REG}\], {_LIST}",
     r"emu::stmatrix(\1, {\2}, true)"),
    (r"wgmma\.commit_group\.sync\.aligned", r"emu::wgmma_commit()"),
    (rf"wgmma\.wait_group\.sync\.aligned {_REG}", r"emu::wgmma_wait(\1)"),
    (rf"cvt\.rn\.f16x2\.f32 {_REG}, {_REG}, {_REG}", r"\1 = emu::packed_half(\2, \3)"),
    (rf"cvt\.rn\.bf16x2\.f32 {_REG}, {_REG}, {_REG}", r"\1 = emu::packed_bfloat(\2, \3)"),
    (rf"sub\.f16x2 {_REG}, {_REG}, {_REG}", r"\1 = emu::sub_halves(\2, \3)"),
    (rf"mul\.f16x2 {_REG}, {_REG}, {_REG}", r"\1 = emu::mul_halves(\2, \3)"),
    (rf"fma\.rn\.f16x2 {_REG}, {_REG}, {_REG}, {_REG}", r"\1 = emu::fma_halves(\2, \3, \4)"),
    (rf"lop3\.b32 {_REG}, {_REG}, {_REG}, {_REG}, (0x\w+)", r"\1 = emu::lop3(\2, \3, \4, \5)"),
]  # fmt: skip
_TABLE = [(re.compile(form), call) for form, call in _CALLS]
_STORE = re.compile(rf"st\.shared::cluster\.v\d\.(\w+) \[{_REG}\], {_LIST}")
_DP4A = re.compile(rf"dp4a\.([us])32\.([us])32 {_REG}, {_REG}, {_REG}, {_REG}")
_BYTES = {"s": "int8_t", "u": "uint8_t"}
_MMA = re.compile(
    rf"mma\.sync\.aligned\.m16n8k\d+\.row\.col\.\w+\.(\w+)\.(\w+)\.\w+ "
    rf"{_LIST}, {_LIST}, {_LIST}, {_LIST}"
)
_WGMMA = re.compile(
    r"\{ \.reg \.pred (\w+); setp\.ne\.b32 \1, (%\d+|\d+), 0; "
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k\d+\.\w+\.(\w+)\.(\w+) "
    rf"{_LIST}, {_REG}, {_REG}, \1(?:, 1, 1(?:, ([01]), ([01]))?)?; \}}"
)
_WGMMA_REGISTERS = re.compile(
    r"\{ \.reg \.pred (\w+); setp\.ne\.b32 \1, (%\d+|\d+), 0; "
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k\d+\.\w+\.(\w+)\.(\w+) "
    rf"{_LIST}, {_LIST}, {_REG}, \1(?:, 1, 1(?:, ([01]))?)?; \}}"
)
_GUARDED = re.compile(rf"\{{ \.reg \.pred (\w+); setp\.ne\.b32 \1, {_REG}, 0; @\1 ([^;]*); \}}")


def call_of(text: str, operands: Sequence[str]) -> str:
    """Return the C++ statement that emulates an ``asm`` statement.

    Args:
        text: Template of the ``asm`` statement.
        operands: C++ expressions of ``%0``, ``%1``, ...: outputs, then inputs.

    Raises:
        ConfigError: When the emulator does not know the instruction.
    """
    text = " ".join(text.replace("{", " {").replace("\\n", " ").replace("\\t", " ").split())
    call = _call(text.rstrip("; "))
    call = re.sub(r"&\{([^{}]*)\}", lambda found: _places(found.group(1)), call)
    return re.sub(r"%(\d+)", lambda found: f"({operands[int(found.group(1))]})", call) + ";"


def _places(registers: str) -> str:
    return "{" + re.sub(r"(%\d+)", r"&\1", registers) + "}"


def _call(text: str) -> str:
    if not text or _NOTHING.fullmatch(text):
        return ""
    if guarded := _GUARDED.fullmatch(text):
        return f"if ({guarded.group(2)}) {{ {_call(guarded.group(3))}; }}"
    for form, call in _TABLE:
        if found := form.fullmatch(text):
            return found.expand(call)
    if found := _STORE.fullmatch(text):
        kind, to, values = found.groups()
        return f"emu::store<{_STORED[kind]}>({to}, {{{values}}})"
    if found := _DP4A.fullmatch(text):
        a, b, to, *values = found.groups()
        return f"{to} = emu_dp4a<{_BYTES[a]}, {_BYTES[b]}>({', '.join(values)})"
    if found := _MMA.fullmatch(text):
        a, b, results, *given = found.groups()
        lists = ", ".join(f"{{{each}}}" for each in given)
        return f"emu::mma<{_type(a)}, {_type(b)}>(&{{{results}}}, {lists})"
    if found := _WGMMA.fullmatch(text):
        _, adds, columns, a, b, registers, of_a, of_b, transposed_a, transposed_b = found.groups()
        transposed = f"{transposed_a or 0}, {transposed_b or 0}"
        return (
            f"emu::wgmma<{columns}, {_type(a)}, {_type(b)}>"
            f"(&{{{registers}}}, {of_a}, {of_b}, {adds}, {transposed})"
        )
    if found := _WGMMA_REGISTERS.fullmatch(text):
        _, adds, columns, a, b, registers, of_a, of_b, transposed_b = found.groups()
        return (
            f"emu::wgmma<{columns}, {_type(a)}, {_type(b)}>"
            f"(&{{{registers}}}, {{{of_a}}}, {of_b}, {adds}, {transposed_b or 0})"
        )
    raise ConfigError(f"an instruction must be one that the emulator knows, but got {text!r}")


def _type(name: str) -> str:
    if name not in _TYPES:
        raise ConfigError(f"operands must be {', '.join(_TYPES)} to be emulated, but got {name}")
    return f"emu::Type::{name.upper()}"
