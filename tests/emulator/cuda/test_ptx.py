"""Tests of the translation of inline PTX to calls of the emulator."""

from __future__ import annotations

import pytest

from tests.emulator.cuda.ptx import call_of
from tests.emulator.cuda.source import emulated
from tvmopt.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("mbarrier.init.shared.b64 [%0], %1;", "emu::mbarrier_init((x), (y));"),
        ("bar.sync %0, 128;", "emu::bar_sync((x), 128);"),
        ("mov.u32 %0, %%cluster_ctarank;", "(x) = emu::self->block->rank;"),
        (
            "{ .reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared.b64 _, [%0], 1; }",
            "if ((y)) { emu::mbarrier_arrive((x), 1); };",
        ),
        (
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32{%0, %1}, {%0}, {%1}, {%1, %1};\\n",
            "emu::mma<emu::Type::S8, emu::Type::S8>({&(x), &(y)}, {(x)}, {(y)}, {(y), (y)});",
        ),
        ("fence.mbarrier_init.release.cluster;", ";"),
        ("", ";"),
        ("bar.arrive %0, 256;", "emu::bar_arrive((x), 256);"),
        ("ex2.approx.ftz.f32 %0, %1;", "(x) = emu::exp2_flushed((y));"),
        (
            "{ .reg .pred p; setp.ne.b32 p, %1, 0; "
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
            "{%0, %0}, {%1, %1, %1, %1}, %1, p, 1, 1, 1; }",
            "emu::wgmma<8, emu::Type::F16, emu::Type::F16>"
            "({&(x), &(x)}, {(y), (y), (y), (y)}, (y), (y), 1);",
        ),
    ],
)
def test_an_instruction_becomes_a_call(text: str, call: str) -> None:
    assert call_of(text, ["x", "y"]) == call


@pytest.mark.parametrize("text", ["red.async.add.u32 [%0], %1;", "mov.u32 %0, %laneid;"])
def test_an_unknown_instruction_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be one that the emulator knows, but got"):
        call_of(text, ["x", "y"])


def test_mma_of_other_dtypes_is_refused() -> None:
    text = "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0}, {%1}, {%1}, {%0};"
    with pytest.raises(ConfigError, match="to be emulated, but got f64"):
        call_of(text, ["x", "y"])


def test_operands_may_hold_any_expression() -> None:
    source = """
void f(unsigned a, bool b) {
  asm volatile("bar.sync %0, %1;"  // a comment
               : : "r"(b ? g("a:(") : h(a, 3)), "r"(a) : "memory");
}
"""
    made = emulated(source, {})
    assert 'emu::bar_sync((b ? g("a:(") : h(a, 3)), (a));' in made and "asm" not in made


def test_shared_variables_become_references_into_the_block() -> None:
    source = """#include <cuda_fp16.h>
extern "C" __global__ void main_kernel() {
  extern __shared__ __align__(64) uchar all[];
  __shared__ alignas(64) float some[8];
}
"""
    made = emulated(source, {"main_kernel": ["blockIdx.x", "threadIdx.x"]})
    assert "uchar* all = static_cast<uchar*>(emu::dynamic_shared());" in made
    assert "auto& some = emu::shared_variable<float[8]>(1, 64);" in made
    assert "emu_fixed = 0 + sizeof(float[8]) + 128;" in made
    assert 'emu_tags_main_kernel[] = {"blockIdx.x", "threadIdx.x", nullptr};' in made
    assert "cuda_fp16.h" not in made
