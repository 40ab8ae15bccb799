"""Depthwise convolutions of bytes, and their dot products on a machine without the instruction."""

from __future__ import annotations

import dataclasses

import pytest
import tvm
from tvm import relax, tirx

from tests.kernels.cpu.candidates import lowered
from tests.kernels.cpu.drawn import Drawn, Operand
from tests.kernels.cpu.drawn_products import conv2d_numpy
from tests.kernels.cpu.harness import TARGET
from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.depthwise_dot.config import NAME, DepthwiseDotConfig
from tvmopt.kernels.cpu.intrinsics import choose
from tvmopt.kernels.cpu.intrinsics.depthwise import depthwise_sources
from tvmopt.kernels.cpu.intrinsics.tap_dots import TAP_DOTS, TapDot
from tvmopt.kernels.families import by_name
from tvmopt.kernels.workload import Refusal, Workload


@dataclasses.dataclass(frozen=True)
class ByteDepthwise:
    """A depthwise convolution of bytes, NHWC."""

    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    pad: int = 0
    size: tuple[int, int] = (9, 14)
    channels: int = 32
    batch: int = 1
    data: str = "uint8"
    dilation: int = 1

    def drawn(self) -> Drawn:
        """Return the convolution, its operands and its NumPy reference."""
        padding, dilation = (self.pad,) * 4, (self.dilation, self.dilation)

        def build(x, w):
            return relax.op.nn.conv2d(
                x, w, self.stride, padding, dilation, self.channels, "NHWC", "HWIO",
                out_dtype="int32",
            )  # fmt: skip

        def reference(x, w):
            return conv2d_numpy(x, w, self.stride, padding, dilation, self.channels)

        data = Operand((self.batch, *self.size, self.channels), False, self.data)
        weight = Operand((*self.kernel, 1, self.channels), True, "int8")
        return Drawn(str(self), (data, weight), build, reference)

    def function(self) -> tirx.PrimFunc:
        """Return the TensorIR function."""
        mod = lowered(self.drawn(), TARGET)
        return next(f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))


def configurations(func: tirx.PrimFunc, arch: CpuArch) -> list[DepthwiseDotConfig]:
    """Return the family's configurations by predicted cycles; none if it refuses ``func``."""
    family = by_name()[NAME]
    form = family.match(Workload(func), arch)
    if isinstance(form, Refusal):
        return []
    return [one.hint for one in sorted(family.rank(form, arch), key=lambda one: one.cycles)]


def refusal(func: tirx.PrimFunc, arch: CpuArch) -> str:
    """Return why the family refuses ``func``; empty if it does not."""
    form = by_name()[NAME].match(Workload(func), arch)
    return form.reason if isinstance(form, Refusal) else ""


@pytest.fixture
def emulated_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels of this test compute dot products in plain LLVM IR, so that any CPU runs them."""

    def sources(functions: set[str]) -> list[str]:
        found = depthwise_sources(functions)
        return [_emulated(source, dot) for source in found for dot in [_dot_of(source)]]

    monkeypatch.setattr(choose, "depthwise_sources", sources)


def _dot_of(source: str) -> TapDot:
    return next(dot for dot in TAP_DOTS if f"@{dot.llvm_name}(" in source)


def _emulated(source: str, dot: TapDot) -> str:
    """Define the instruction ``dot`` in LLVM IR, under another name."""
    name = f"tests_emulated_{dot.name}"
    declaration = next(line for line in source.splitlines() if f"@{dot.llvm_name}(" in line)
    source = source.replace(declaration, "").replace(dot.llvm_name, name)
    lanes, taps, bits = dot.lanes, dot.taps, dot.tap_bits
    count = lanes * taps
    packed, wide, vector = f"<{count} x i{bits}>", f"<{count} x i32>", f"<{lanes} x i32>"
    lines = [
        f"%x = {'sext' if dot.signed else 'zext'} {packed} %a to {wide}",
        f"%y = sext {packed} %b to {wide}",
        f"%p = mul {wide} %x, %y",
    ]
    total = "%c" if dot.accumulates else "zeroinitializer"
    for tap in range(taps):
        order = ", ".join(f"i32 {i * taps + tap}" for i in range(lanes))
        lines += [
            f"%s{tap} = shufflevector {wide} %p, {wide} %p, <{lanes} x i32> <{order}>",
            f"%t{tap} = add {vector} {total}, %s{tap}",
        ]
        total = f"%t{tap}"
    first = f"{vector} %c, " if dot.accumulates else ""
    head = f"define linkonce_odr {vector} @{name}({first}{packed} %a, {packed} %b) #0 {{"
    return "\n".join([head, *lines, f"ret {vector} {total}", "}", source])


def assembly(func: tirx.PrimFunc, target: tvm.target.Target) -> str:
    """Return the assembly of ``func``."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return str(tvm.tirx.build(mod, target=target, pipeline="s_tir").inspect_source("asm"))
