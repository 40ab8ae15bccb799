"""Products of bytes and of bfloat16: by the CPU's instructions, and the numbers of NumPy.

AMX's tiles run under emulation where this machine has none.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt import host
from tvmopt.arch.features import required_cpu_flags
from tvmopt.arch.target import resolve_target
from tvmopt.emulate import amx
from tvmopt.policy import schedule_function
from tvmopt.schedule import Hint, apply_hint, finish

from .candidates import THREADS, Case, Cpu, cases, check_numbers, two_threads
from .contract import assert_replays, keep_contract
from .drawn import BFLOAT16, BYTES, Drawn, Operand, Types
from .drawn_products import conv2d_numpy
from .kinds import NARROW

__all__ = ["two_threads"]

op, nn = relax.op, relax.op.nn
NEEDED = ("avx512vnni", "avx512bf16")
_FLAGS = required_cpu_flags("x86_64", NEEDED)
needs_instructions = pytest.mark.skipif(
    not host.cpu_flags().issuperset(_FLAGS), reason=f"this CPU has not all of {', '.join(_FLAGS)}"
)
needs_emulator = pytest.mark.skipif(
    not {"avx2", "fma"} <= host.cpu_flags(), reason="the emulator of AMX is x86_64 code"
)


@pytest.fixture(scope="module")
def native() -> Cpu:
    spec = resolve_target("host", THREADS)
    return Cpu("host", spec.arch(), spec.to_tvm(opt_level=1))


@pytest.fixture(scope="module")
def tiles() -> Cpu:
    """This machine with AMX."""
    spec = dataclasses.replace(resolve_target("host", THREADS), mattr=("+amx-int8", "+amx-bf16"))
    return Cpu("host with AMX", spec.arch(), spec.to_tvm(opt_level=1))


@contextlib.contextmanager
def on_amx() -> Iterator[None]:
    """Run what is inside on AMX, or on its emulator."""
    flags = {"amx_tile", "amx_int8", "amx_bf16"}
    if flags <= host.cpu_flags() and host.request_amx(flags):
        yield
    else:
        with amx.emulated():
            yield


# ---- any function, any hint ----

SERVED = {
    "byte_convolution": {"register_tile", "contraction", "fallback"},
    "byte_matmul": {"register_tile", "contraction", "fallback"},
    "bfloat16_convolution": {"register_tile", "contraction", "fallback"},
    "bfloat16_matmul": {"register_tile", "contraction", "fallback"},
}


def _draw(kind: str, examples: int, check: Callable[[Drawn], collections.Counter[str]]) -> None:
    served: collections.Counter[str] = collections.Counter()

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(drawn=NARROW[kind])
    def contract(drawn: Drawn) -> None:
        served.update(check(drawn))

    contract()
    assert SERVED[kind] <= set(served), f"never applied: {SERVED[kind] - set(served)}"


@needs_instructions
@pytest.mark.parametrize("kind", NARROW)
def test_every_template_keeps_the_contract(kind: str, native: Cpu, two_threads: Any) -> None:
    _draw(kind, 5, lambda drawn: two_threads.submit(keep_contract, drawn, native).result())


@needs_instructions
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", NARROW)
def test_every_template_keeps_the_contract_on_many_functions(
    kind: str, native: Cpu, two_threads: Any
) -> None:
    _draw(kind, 150, lambda drawn: two_threads.submit(keep_contract, drawn, native).result())


# ---- functions that an instruction must serve ----

_Make = Callable[[Types], Drawn]


def convolution(
    size: tuple[int, int] = (9, 9),
    channels: int = 16,
    outputs: int = 32,
    kernel: tuple[int, int] = (3, 3),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    strides: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    batch: int = 1,
    constant: bool = True,
    blocked: bool = False,
    epilogue: int = 0,
) -> _Make:
    """2-d convolution in NHWC, or in blocks of 16 channels."""

    def make(types: Types) -> Drawn:
        each = channels // groups
        high, wide = (
            (size[i] + padding[i] + padding[i + 2] - (kernel[i] - 1) * dilation[i] - 1)
            // strides[i] + 1
            for i in (0, 1)
        )  # fmt: skip
        settings = {
            "strides": strides, "padding": padding, "dilation": dilation, "groups": groups
        }  # fmt: skip
        data: tuple[int, ...] = (batch, *size, channels)
        weight: tuple[int, ...] = (*kernel, each, outputs)
        out: tuple[int, ...] = (batch, high, wide, outputs)
        bias: tuple[int, ...] = (1, 1, 1, outputs)
        layouts = "NHWC", "HWIO", "NHWC"
        if blocked:
            layouts = "NCHW16c", "OIHW16i16o", "NCHW16c"
            data = (batch, channels // 16, *size, 16)
            weight = (outputs // 16, each // 16, *kernel, 16, 16)
            out, bias = (batch, outputs // 16, high, wide, 16), (1, outputs // 16, 1, 1, 16)

        def build(x: Any, w: Any) -> Any:
            names = ("data_layout", "kernel_layout", "out_layout")
            places = dict(zip(names, layouts, strict=True))
            return nn.conv2d(x, w, **settings, **places, out_dtype=types.sums)

        def numpy(x: np.ndarray, w: np.ndarray) -> np.ndarray:
            if not blocked:
                return conv2d_numpy(x, w, strides, padding, dilation, groups)
            x = x.transpose(0, 2, 3, 1, 4).reshape(batch, *size, channels)
            w = w.transpose(2, 3, 1, 4, 0, 5).reshape(*kernel, each, outputs)
            y = conv2d_numpy(x, w, strides, padding, dilation, groups)
            return y.reshape(batch, high, wide, -1, 16).transpose(0, 3, 1, 2, 4)

        operands = Operand(data, dtype=types.data), Operand(weight, constant, types.weight)
        after = types.epilogues[epilogue % len(types.epilogues)]
        return types.with_epilogue(after, "conv2d", operands, build, numpy, out, bias)

    return make


def matmul(
    rows: int = 7, depth: int = 64, columns: int = 48, batch: int = 0, constant: bool = True,
    shared: bool = True, epilogue: int = 0,
) -> _Make:  # fmt: skip
    """Product of matrices, of several with one (``shared``) or each with its own."""

    def make(types: Types) -> Drawn:
        lead = (batch,) if batch else ()
        weight = (depth, columns) if shared else (*lead, depth, columns)
        return types.with_epilogue(
            types.epilogues[epilogue % len(types.epilogues)],
            "matmul",
            (Operand((*lead, rows, depth), dtype=types.data),
             Operand(weight, constant, types.weight)),
            lambda a, b: op.matmul(a, b, out_dtype=types.sums),
            lambda a, b: a @ b,
            (*lead, rows, columns),
            (columns,),
        )  # fmt: skip

    return make


PAD = (1, 1, 1, 1)
PRODUCTS: dict[str, _Make] = {
    "1x1": convolution(kernel=(1, 1), channels=64, outputs=64, epilogue=2),
    "3x3": convolution(padding=PAD, channels=64, outputs=64, epilogue=4),
    "7x7 of an image": convolution(
        (15, 15), 3, 64, (7, 7), padding=(3, 3, 3, 3), strides=(2, 2), epilogue=3
    ),
    "1x1 strided": convolution(kernel=(1, 1), strides=(2, 2), epilogue=5),
    "3x3 strided": convolution((14, 10), padding=PAD, strides=(2, 2), epilogue=1),
    "dilated": convolution((11, 11), padding=(2, 2, 2, 2), dilation=(2, 2), epilogue=2),
    "padded on two sides": convolution((8, 8), padding=(0, 0, 1, 2), kernel=(2, 3)),
    "ragged channels": convolution(channels=18, outputs=40, padding=PAD, epilogue=4),
    "few channels, odd outputs": convolution(channels=5, outputs=19, epilogue=2),
    "two images": convolution(batch=2, padding=PAD, epilogue=3),
    "weight of another call": convolution(constant=False, padding=PAD),
    "grouped": convolution(channels=32, outputs=64, groups=2, epilogue=2),
    "blocked 3x3": convolution(
        channels=32, outputs=48, padding=PAD, strides=(2, 2), blocked=True, epilogue=3
    ),
    "blocked 1x1": convolution(channels=48, kernel=(1, 1), blocked=True, epilogue=1),
    "matmul": matmul(epilogue=2),
    "matmul of one row": matmul(rows=1, depth=256, columns=100, epilogue=5),
    "matmul ragged": matmul(rows=29, depth=130, columns=67, epilogue=1),
    "matmul of an odd depth": matmul(rows=5, depth=7, columns=33),
    "matmul of many": matmul(rows=12, batch=3, epilogue=4),
    "matmul of many, each with its own": matmul(rows=12, batch=3, shared=False, constant=False),
    "matmul of many, narrow": matmul(16, 7, 8, batch=4, shared=False),
}
# What AMX leaves to vectors: grouped channels, a block of which would be read for several groups,
# and fewer outputs than a tile has columns.
WITHOUT_TILES = {"grouped", "matmul of many, narrow"}
TYPES = {"bytes": BYTES, "bfloat16": BFLOAT16}


def whole(make: _Make, types: Types, cpu: Cpu) -> Case:
    """The case of the product: padding of ragged weights has functions of its own."""
    [product] = [c for c in cases(make(types), cpu.target) if "T.init()" in c.func.script()]
    return product


def count(case: Case, hint: Hint, cpu: Cpu, instruction: str) -> int:
    """How often ``instruction`` stands in the machine code."""
    func = finish(apply_hint(case.func, hint).mod["main"], case.func)
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    assembly = tvm.tirx.build(mod, target=cpu.target, pipeline="s_tir").inspect_source("asm")
    return len(re.findall(rf"\b{instruction}\b", assembly))


@needs_instructions
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_first_choice_multiplies_by_the_instruction(
    name: str, types: str, native: Cpu, two_threads: Any
) -> None:
    instruction = {"bytes": "vpdpbusd", "bfloat16": "vdpbf16ps"}[types]
    case = whole(PRODUCTS[name], TYPES[types], native)
    result = schedule_function(case.func, native.arch)
    assert (result.rule, bool(result.hint and result.hint.intrin)) == ("register_tile", True)
    hint = result.hint
    rows = int(np.prod(hint.block[:-1]))
    vectors = -(-hint.block[-1] // 16)
    # A step of the reduction has one for each vector of the tile; LLVM may unroll steps.
    assert count(case, hint, native, instruction) >= rows * vectors
    assert_replays(result.schedule, case.func)
    two_threads.submit(check_numbers, case, [result.schedule.mod["main"]], native.target).result()
