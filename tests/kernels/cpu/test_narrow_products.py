"""int8 and bfloat16 GEMM and convolution by the dot-product instructions of the CPU, against NumPy.

AMX kernels run under emulation where this machine has no AMX.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.kernels.cpu.candidates import THREADS, Case, Cpu, cases, check_numbers, two_threads
from tests.kernels.cpu.contract import assert_replays, keep_contract
from tests.kernels.cpu.drawn import BFLOAT16, BYTES, Drawn, Operand, Types
from tests.kernels.cpu.drawn_products import conv2d_numpy
from tests.kernels.cpu.intrinsics.amx.kernels import FEATURES, NO_FEATURES, on_amx
from tests.kernels.cpu.kinds import NARROW
from tvmopt import host
from tvmopt.device.features import required_cpu_flags
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.common.tile_config import ContractionConfig
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.intrinsics import find_dot
from tvmopt.kernels.cpu.matrix_tile.config import MatrixTileConfig
from tvmopt.kernels.emit import NotApplicable, emit
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.policies import DefaultPolicy

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
    """Return this machine without AMX, so that vector instructions are used."""
    spec = dataclasses.replace(resolve_target("host", THREADS), mattr=NO_FEATURES)
    return Cpu("host without AMX", spec.arch(), spec.to_tvm(opt_level=1))


@pytest.fixture(scope="module")
def tiles() -> Cpu:
    """Return this machine with AMX."""
    spec = dataclasses.replace(resolve_target("host", THREADS), mattr=FEATURES)
    return Cpu("host with AMX", spec.arch(), spec.to_tvm(opt_level=1))


# ---- any function, any hint ----

SERVED = {
    "byte_convolution": {"register_tile", "contraction", "fallback"},
    "byte_matmul": {"register_tile", "contraction", "fallback"},
    "bfloat16_convolution": {"register_tile", "contraction", "fallback"},
    "bfloat16_matmul": {"register_tile", "contraction", "fallback"},
    "bfloat16_winograd": {"winograd", "contraction", "fallback"},
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
    _draw(kind, 3, lambda drawn: two_threads.submit(keep_contract, drawn, native).result())


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
    """Draw a 2-d convolution in NHWC, or in blocks of 16 channels."""

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
    """A batched matmul with one ``shared`` weight, or with one weight per batch."""

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
    "one tile block and a half": convolution(kernel=(1, 1), channels=64, outputs=48, epilogue=4),
    "few channels, odd outputs": convolution(channels=5, outputs=19, epilogue=2),
    "few channels, odd width": convolution((9, 13), channels=8, padding=PAD, kernel=(3, 5)),
    "few channels, one column": convolution((9, 3), channels=4, kernel=(2, 3), epilogue=3),
    "few channels, dilated": convolution((9, 11), channels=8, dilation=(1, 2), outputs=32),
    "two images": convolution(batch=2, padding=PAD, epilogue=3),
    "weight of another call": convolution(constant=False, padding=PAD),
    "grouped": convolution(channels=32, outputs=64, groups=2, epilogue=2),
    "blocked 3x3": convolution(
        channels=32, outputs=48, padding=PAD, strides=(2, 2), blocked=True, epilogue=3
    ),
    "blocked 1x1": convolution(channels=48, kernel=(1, 1), blocked=True, epilogue=1),
    "1x1 of 3 lines of 19": convolution((3, 19), 64, 64, (1, 1), epilogue=4),
    "3x3 of lines of 19": convolution((4, 19), 32, 40, padding=PAD, epilogue=2),
    "3x3 strided to lines of 19": convolution((7, 37), padding=PAD, strides=(2, 2), epilogue=3),
    "matmul": matmul(epilogue=2),
    "matmul of one row": matmul(rows=1, depth=256, columns=100, epilogue=5),
    "matmul ragged": matmul(rows=29, depth=130, columns=67, epilogue=1),
    "matmul of an odd depth": matmul(rows=5, depth=7, columns=33),
    "matmul of many": matmul(rows=12, batch=3, epilogue=4),
    "matmul of many, each with its own": matmul(rows=12, batch=3, shared=False, constant=False),
    "matmul of a prime number of rows": matmul(rows=37, depth=64, columns=96, epilogue=2),
    "matmul of many, narrow": matmul(16, 7, 8, batch=4, shared=False),
}
# Workloads without AMX: a tile block would span several groups, or would not be full.
WITHOUT_TILES = ["grouped", "matmul of many, narrow"]
# bfloat16 workloads without AMX on a CPU with it: vector FMAs multiply them in float32.
WIDENED: dict[str, _Make] = {
    **{name: PRODUCTS[name] for name in WITHOUT_TILES},
    "grouped weight of another call": convolution(
        channels=32, outputs=64, groups=2, constant=False, epilogue=1
    ),
    "grouped with ragged columns": convolution((7, 7), 68, 68, (1, 1), groups=2, epilogue=2),
}
# One or two tile blocks in each direction, on one or two image lines; columns whole or padded, rows
# in blocks that divide them or overlap.
ON_TILES = [
    ("3x3", "bytes"), ("3x3 strided", "bfloat16"), ("ragged channels", "bytes"),
    ("few channels, odd outputs", "bfloat16"), ("weight of another call", "bytes"),
    ("7x7 of an image", "bytes"), ("7x7 of an image", "bfloat16"),
    ("few channels, odd width", "bytes"), ("few channels, odd width", "bfloat16"),
    ("few channels, dilated", "bfloat16"), ("1x1 of 3 lines of 19", "bytes"),
    ("1x1 of 3 lines of 19", "bfloat16"), ("3x3 of lines of 19", "bytes"),
    ("3x3 strided to lines of 19", "bfloat16"),
    ("blocked 3x3", "bytes"), ("blocked 1x1", "bfloat16"), ("matmul", "bfloat16"),
    ("matmul of one row", "bytes"),
    ("matmul ragged", "bytes"), ("matmul of many, each with its own", "bfloat16"),
]  # fmt: skip
# One bfloat16 case per instruction; the loops equal int8's.
ALSO_BFLOAT16 = [
    "7x7 of an image", "3x3 strided", "ragged channels", "grouped", "blocked 3x3", "matmul ragged",
    "matmul of an odd depth", "matmul of many, each with its own",
]  # fmt: skip
TYPES = {"bytes": BYTES, "bfloat16": BFLOAT16}


def whole(make: _Make, types: Types, cpu: Cpu) -> Case:
    """Return the case of the matmul or convolution; other functions pad ragged weights."""
    [product] = [c for c in cases(make(types), cpu.target) if "T.init()" in c.func.script()]
    return product


def _with_intrinsic(func: tirx.PrimFunc, cpu: Cpu) -> Iterator[ContractionConfig]:
    """The configurations that multiply by a tensor intrinsic, in ranked order."""
    for ranked in DefaultPolicy(func, cpu.arch).ranked:
        if isinstance(ranked.hint, ContractionConfig) and ranked.hint.intrinsic:
            yield ranked.hint


def count(case: Case, hint: ContractionConfig, cpu: Cpu, instruction: str) -> int:
    """How often ``instruction`` stands in the machine code."""
    func = finish(emit(case.func, hint).mod["main"], case.func)
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    assembly = tvm.tirx.build(mod, target=cpu.target, pipeline="s_tir").inspect_source("asm")
    return len(re.findall(rf"\b{instruction}\b", assembly))


@pytest.mark.sample(4)
@needs_instructions
@pytest.mark.parametrize(
    ("name", "types"),
    [*((name, "bytes") for name in PRODUCTS), *((name, "bfloat16") for name in ALSO_BFLOAT16)],
)
def test_the_first_choice_multiplies_by_the_instruction(
    name: str, types: str, native: Cpu, two_threads: Any
) -> None:
    instruction = {"bytes": "vpdpbusd", "bfloat16": "vdpbf16ps"}[types]
    case = whole(PRODUCTS[name], TYPES[types], native)
    result = schedule_function(case.func, native.arch)
    assert (result.rule, bool(result.hint and result.hint.intrinsic)) == ("register_tile", True)
    hint = result.hint
    rows = int(np.prod(hint.register_tile[:-1]))
    vectors = -(-hint.register_tile[-1] // 16)
    # A step of the reduction has one for each vector of the tile; LLVM may unroll steps.
    assert count(case, hint, native, instruction) >= rows * vectors
    assert_replays(result.schedule, case.func)
    two_threads.submit(check_numbers, case, [result.schedule.mod["main"]], native.target).result()


@pytest.mark.parametrize("name", WIDENED)
def test_cpus_with_amx_multiply_bfloat16_in_float32_where_no_tile_fits(name: str) -> None:
    """Their vdpbf16ps does half the multiply-adds of FMAs per cycle."""
    spec = resolve_target("sapphirerapids", THREADS)
    cpu = Cpu("sapphirerapids", spec.arch(), spec.to_tvm(opt_level=1))
    case = whole(WIDENED[name], BFLOAT16, cpu)
    hint = schedule_function(case.func, cpu.arch).hint
    assert isinstance(hint, ContractionConfig)
    assert not hint.intrinsic
    assert count(case, hint, cpu, "vdpbf16ps") == 0
    assert count(case, hint, cpu, r"vfmadd\d+ps") > 0


@needs_emulator
@pytest.mark.parametrize("name", WIDENED)
def test_numbers_of_widened_bfloat16(name: str, tiles: Cpu, two_threads: Any) -> None:
    case = whole(WIDENED[name], BFLOAT16, tiles)
    result = schedule_function(case.func, tiles.arch)
    assert not getattr(result.hint, "intrinsic", "")
    two_threads.submit(check_numbers, case, [result.schedule.mod["main"]], tiles.target).result()


@needs_instructions
def test_rows_that_do_not_divide_are_no_reason_for_small_tiles(native: Cpu) -> None:
    case = whole(PRODUCTS["matmul of a prime number of rows"], BYTES, native)
    hint = schedule_function(case.func, native.arch).hint
    assert hint is not None
    assert hint.register_tile[0] > 1
    assert 37 % hint.register_tile[0]


@needs_instructions
@pytest.mark.parametrize(
    "name", ["1x1", "7x7 of an image", "matmul ragged", "matmul of many, each with its own"]
)
def test_no_configuration_with_the_instruction_is_refused(name: str, native: Cpu) -> None:
    """After a few refusals the tuner drops a template, and its instruction."""
    case = whole(PRODUCTS[name], BYTES, native)
    hints = list(_with_intrinsic(case.func, native))
    assert hints
    for hint in hints[::3]:
        emit(case.func, hint)


@pytest.mark.sample(2)
@needs_emulator
@pytest.mark.parametrize(("name", "types"), ON_TILES)
def test_tiles_multiply(name: str, types: str, tiles: Cpu, two_threads: Any) -> None:
    instruction = {"bytes": "tdpbusd", "bfloat16": "tdpbf16ps"}[types]
    case = whole(PRODUCTS[name], TYPES[types], tiles)
    ranked = [r.hint for r in DefaultPolicy(case.func, tiles.arch).ranked]
    hints = [hint for hint in ranked if hint.template == "matrix_tile"]
    assert hints
    schedule = emit(case.func, hints[0])
    assert_replays(schedule, case.func)
    *rows, columns = hints[0].register_tile
    used = -(-int(np.prod(rows)) // 16) * (columns // 16)
    assert count(case, hints[0], tiles, instruction) >= used
    with on_amx():
        check = two_threads.submit(check_numbers, case, [schedule.mod["main"]], tiles.target)
        check.result()
    for hint in hints[1::29]:
        emit(case.func, hint)  # none is refused


@needs_emulator
def test_a_tile_has_rows_of_two_image_lines_at_most(tiles: Cpu) -> None:
    """The output has one column, so that rows of a larger tile would be image lines."""
    case = whole(PRODUCTS["few channels, one column"], BYTES, tiles)
    hints = [r.hint for r in DefaultPolicy(case.func, tiles.arch).ranked]
    of_tiles = [hint for hint in hints if isinstance(hint, MatrixTileConfig)]
    assert all(set(hint.register_tile[:-1]) == {1} for hint in of_tiles)
    for hint in of_tiles:
        emit(case.func, hint)


@needs_emulator
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("name", [name for name in PRODUCTS if name not in WITHOUT_TILES])
def test_every_block_of_tiles(name: str, types: str, tiles: Cpu, two_threads: Any) -> None:
    case = whole(PRODUCTS[name], TYPES[types], tiles)
    ranked = [r.hint for r in DefaultPolicy(case.func, tiles.arch).ranked]
    schedules = [emit(case.func, hint) for hint in ranked if hint.template == "matrix_tile"]
    for schedule in schedules:
        assert_replays(schedule, case.func)
    funcs = [schedule.mod["main"] for schedule in schedules[::3]]
    with on_amx():
        two_threads.submit(check_numbers, case, funcs, tiles.target).result()


@needs_emulator
@pytest.mark.parametrize("name", WITHOUT_TILES)
def test_what_tiles_do_not_multiply_vectors_do(name: str, tiles: Cpu) -> None:
    case = whole(PRODUCTS[name], BYTES, tiles)
    templates = {r.hint.template for r in DefaultPolicy(case.func, tiles.arch).ranked}
    assert "matrix_tile" not in templates
    assert "register_tile" in templates


def test_a_hint_of_another_cpu_is_refused() -> None:
    """This CPU lacks its intrinsic, or the function cannot use it."""
    spec = resolve_target("znver4", THREADS)
    target = spec.to_tvm(opt_level=1)
    cpu = Cpu("znver4", spec.arch(), target)
    case = whole(PRODUCTS["matmul"], BYTES, cpu)
    hint = next(_with_intrinsic(case.func, cpu))
    emit(case.func, hint)
    wrong = [
        dataclasses.replace(hint, arch=resolve_target("haswell", THREADS).arch()),
        dataclasses.replace(hint, intrinsic="tvmopt.avx512_bf16"),
        dataclasses.replace(hint, intrinsic="tvmopt.vnni_256"),
        MatrixTileConfig(
            "matrix_tile", cpu.arch, hint.register_tile, hint.loop_order,
            packing=hint.packing, intrinsic="tvmopt.amx_u8s8",
        ),
        dataclasses.replace(hint, packing="none"),
    ]  # fmt: skip
    for other in wrong:
        with pytest.raises(NotApplicable, match="does not suit the operands"):
            emit(case.func, other)


# ---- a database in a process that has scheduled nothing ----

_READ = """
import json, sys
from pathlib import Path
import tvm
from tvmopt.kernels.cpu.intrinsics import DOTS
from tvmopt.tune import DatabaseKey, apply_database
from tvm import s_tir
folder = Path(sys.argv[1])
for dot in DOTS:
    assert s_tir.TensorIntrin.get(dot.name, allow_missing=True) is None
mod = tvm.ir.load_json((folder / "module.json").read_text())
key = DatabaseKey(**json.loads((folder / "key.json").read_text()))
target = tvm.target.Target(json.loads(key.target))
applied = apply_database(mod, folder / "database", key, target)
(folder / "applied.json").write_text(tvm.ir.save_json(applied.mod))
print(sorted(applied.served))
"""


def _in_a_database(case: Case, hint: ContractionConfig, cpu: Cpu, folder: Path) -> tvm.IRModule:
    """Commit a record of ``hint``, have another process apply it, and give what that made."""
    from tvm.s_tir import meta_schedule as ms

    from tvmopt.tune import DatabaseKey, canonical_target
    from tvmopt.tune.database import create_database

    func = case.func.with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": func})
    key = DatabaseKey(canonical_target(cpu.target), THREADS)
    database = create_database(folder / "database", key)
    schedule = emit(func, hint)
    workload = database.commit_workload(mod)
    record = ms.database.TuningRecord(schedule.trace, workload, [1e-6], cpu.target)
    database.commit_tuning_record(record)
    (folder / "module.json").write_text(tvm.ir.save_json(mod))
    (folder / "key.json").write_text(json.dumps(dataclasses.asdict(key)))
    command = [sys.executable, "-c", _READ, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "['main']"
    return tvm.ir.load_json((folder / "applied.json").read_text())


@pytest.mark.slow  # test_tiles_multiply replays in this process
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("template", "types"),
    [("register_tile", "bytes"), ("matrix_tile", "bytes"), ("matrix_tile", "bfloat16")],
)
def test_a_record_replays_in_a_fresh_process(
    template: str, types: str, tiles: Cpu, tmp_path: Path
) -> None:
    case = whole(convolution(channels=32, outputs=32, padding=PAD), TYPES[types], tiles)
    ranked = [r.hint for r in DefaultPolicy(case.func, tiles.arch).ranked]
    fitting = [hint for hint in ranked if hint.template == template and hint.intrinsic]
    if not fitting and find_dot(tiles.arch, "uint8", "int8") is None:
        pytest.skip("this CPU has no dot-product instruction for int8")
    hint = fitting[0]
    applied = _in_a_database(case, hint, tiles, tmp_path)
    func = case.func.with_attr("global_symbol", "main")
    expected = finish(emit(func, hint).mod["main"], func)
    # JSON turns the annotation True into 1.
    texts = [f.script().replace(": True", ": 1") for f in (applied["main"], expected)]
    assert texts[0] == texts[1]
