"""Software prefetch of packed weight and epilogue operands: rules, calls, and unchanged loops."""

from __future__ import annotations

import dataclasses
import math
import platform
import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from tests.kernels.cpu import harness
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.common.prefetch_rules import bytes_ahead
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.passes.prefetch import PREFETCH_EPILOGUE
from tvmopt.kernels.cpu.register_tile.config import RegisterTileConfig
from tvmopt.kernels.emit import emit
from tvmopt.kernels.policies import DefaultPolicy

# CPUs by name, so that the tests do not depend on the machine.
AVX512, AVX2 = (resolve_target(cpu, 2) for cpu in ("skylake-avx512", "znver3"))


def matmul(rows: int, depth: int, columns: int, spec=AVX512) -> tirx.PrimFunc:
    """A matmul with a constant weight."""
    return harness.matmul(rows, depth, columns, spec.to_tvm())


def tile(rows: int, columns: int, spec=AVX512, **fields: object) -> RegisterTileConfig:
    """A register tile that fetches 1024 bytes ahead."""
    values = {
        "loop_order": (1, 0), "parallel_loops": 1, "packing": "prepacked", "prefetch_bytes": 1024,
        **fields,
    }  # fmt: skip
    return RegisterTileConfig("register_tile", spec.arch(), register_tile=(rows, columns), **values)


def scheduled(func: tirx.PrimFunc, hint: RegisterTileConfig) -> tirx.PrimFunc:
    """``func`` under ``hint``, finished."""
    return finish(emit(func, hint).mod["main"], func)


def prefetches(func: tirx.PrimFunc) -> list[ir.Call]:
    """Return the prefetch calls."""
    calls: list[ir.Call] = []
    tvm_ffi.structural_walk(func.body, (ir.Call, calls.append), order="post")
    return [c for c in calls if c.args and "tvmopt_prefetch" in str(c.args[0])]


def assembly(func: tirx.PrimFunc, spec=AVX512) -> str:
    """Return the assembly of ``func``."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tvm.compile(mod, spec.to_tvm()).mod.inspect_source("asm")


def called(func: tirx.PrimFunc, spec, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Compile a finished matmul and return its result."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    out = tvm.runtime.tensor(np.zeros((len(x), w.shape[1]), "float32"))
    tvm.compile(mod, spec.to_tvm())["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w), out)
    return out.numpy()


def test_each_step_fetches_what_it_reads_1024_bytes_later():
    [call] = prefetches(scheduled(matmul(64, 128, 256), tile(8, 32)))
    assert "tvmopt_prefetch_2" in str(call.args[0])  # 32 columns of 4 bytes: two lines of 64
    assert "+ T.int64(8)" in str(call.args[1])  # 1024 bytes at 128 bytes per step


def test_without_being_told_nothing_is_fetched():
    assert prefetches(scheduled(matmul(64, 128, 256), tile(8, 32, prefetch_bytes=0))) == []


def test_other_instruction_sets_have_no_such_instruction():
    hint = tile(8, 32)
    arm = dataclasses.replace(hint, arch=dataclasses.replace(hint.arch, isa="aarch64"))
    assert prefetches(scheduled(matmul(64, 128, 256), arm)) == []


def test_before_and_after_differ_by_the_call_alone():
    func = matmul(64, 128, 256)
    ahead, plain = (scheduled(func, tile(8, 32, prefetch_bytes=n)) for n in (1024, 0))

    def without(seq: tirx.SeqStmt) -> tirx.Stmt:
        kept = [s for s in seq.seq if not isinstance(s, tirx.Evaluate)]
        return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)

    body = tvm_ffi.structural_map(ahead.body, (tirx.SeqStmt, without), order="post")
    body = tvm_ffi.structural_map(body, (tirx.AttrStmt, lambda a: a.body), order="post")
    tvm.ir.assert_structural_equal(ahead.with_body(body), plain)


@pytest.mark.parametrize("rows, columns", [(8, 32), (6, 64), (14, 32)])
def test_sums_stay_in_registers(rows: int, columns: int):
    """With its own prefetch intrinsic, LLVM would spill the accumulators at every step."""
    text = assembly(scheduled(matmul(84, 512, 256), tile(rows, columns)))
    loops = re.findall(r"prefetcht0.*?\n\tj\w+\s", text, re.DOTALL)
    full = [loop for loop in loops if loop.count("vfmadd") == rows * columns // 16]
    assert full
    assert not any(re.search(r"vmov\w+\s+%zmm\d+, .*\(", loop) for loop in full)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="prefetches are written for x86")
@pytest.mark.parametrize("packing", ["prepacked", "runtime", "none"])
@pytest.mark.parametrize("fields", [{}, {"k_block": 32, "loops_in_k_block": 1}], ids=str)
def test_numbers(packing: str, fields: dict[str, int]):
    host = resolve_target("host", 2)
    width = 2 * host.arch().lanes("float32")
    func = matmul(48, 96, 2 * width, host)
    hint = tile(6, width, host, packing=packing, **fields)
    ready = scheduled(func, hint)
    assert len(prefetches(ready)) == 1
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype("float32") for s in ((48, 96), (96, 2 * width)))
    np.testing.assert_allclose(called(ready, host, x, w), x @ w, rtol=1e-4, atol=1e-4)


def test_a_recorded_trace_fetches_too():
    func = matmul(64, 128, 256)
    trace = emit(func, tile(8, 32)).trace
    again = s_tir.Schedule(tvm.IRModule({"main": func}))
    trace.apply_to_schedule(again, remove_postproc=False)
    assert len(prefetches(finish(again.mod["main"], func))) == 1


@pytest.mark.parametrize(
    ("rows", "vectors", "cpu", "expected"),
    [
        (6, 2, AVX2, True),
        (7, 1, AVX2, False),
        (8, 1, AVX2, True),  # two unrolled steps need 17 registers, of 16
        (14, 1, AVX2, True),
        (14, 1, AVX512, False),
        (14, 2, AVX512, True),
    ],
)
def test_which_tiles_prefetch(rows: int, vectors: int, cpu, expected: bool):
    assert bool(bytes_ahead(rows, vectors, cpu.arch())) == expected
    arm = dataclasses.replace(cpu.arch(), isa="aarch64")
    assert bytes_ahead(rows, vectors, arm) == 0


def test_the_policy_prefetches_for_its_tiles():
    for arch in (AVX512.arch(), AVX2.arch()):
        ranked = DefaultPolicy(matmul(112, 256, 256), arch).ranked
        tiles = [r.hint for r in ranked if r.hint.template == "register_tile"]
        assert {hint.prefetch_bytes > 0 for hint in tiles} == {False, True}
        for hint in tiles:
            *rows, width = hint.register_tile
            vectors = math.ceil(width / arch.lanes("float32"))
            assert hint.prefetch_bytes == bytes_ahead(math.prod(rows), vectors, arch)


@pytest.mark.parametrize("rows", [8, 14])
def test_accumulators_of_one_vector_stay_in_registers_with_avx2(rows: int):
    """Without the prefetch, LLVM unrolls the reduction for this CPU, and spills them."""

    def spills(distance: int) -> int:
        hint = tile(rows, 8, AVX2, prefetch_bytes=distance)
        text = assembly(scheduled(matmul(112, 512, 256, AVX2), hint), AVX2)
        loops = [part for part in re.split(r"\n\.LBB", text) if part.count("vfmadd") >= rows]
        assert loops
        return sum(len(re.findall(r"vmovups\s+%ymm\d+, -?\d*\(%rsp\)", loop)) for loop in loops)

    assert spills(bytes_ahead(rows, 1, AVX2.arch())) == 0
    assert spills(0) > 0


# Reductions of 16 and 64 steps on AVX-512: 8 and 32 cycles of FMAs per cache line of the output.
SHORT, LONG = 16, 64
# A float32 output of 100 columns that is larger than the L2 caches of two cores, and one that fits.
LARGE, SMALL = 12544, 196


def residual(rows: int, depth: int, columns: int) -> tirx.PrimFunc:
    """``relu(x @ w + bias + r)``, lowered, with a constant weight and bias."""
    rng = np.random.default_rng(0)
    weight, bias = (rng.standard_normal(s).astype("float32") for s in ((depth, columns), columns))
    built = harness.lower(
        lambda x, r: relax.op.nn.relu(
            relax.op.add(
                relax.op.add(relax.op.matmul(x, relax.const(weight)), relax.const(bias)), r
            )
        ),
        [((rows, depth), "float32"), ((rows, columns), "float32")],
    )
    [func] = harness.prim_funcs(built).values()
    return func


def test_a_short_reduction_fetches_output_and_residual_before_it():
    func = scheduled(residual(LARGE, SHORT, 64), tile(8, 32, prefetch_bytes=0))
    first, second = prefetches(func)
    assert {str(call.args[0]) for call in (first, second)} == {'"tvmopt_prefetch_2"'}
    fetched = [call.args[1].args[0].source for call in (first, second)]
    assert fetched[0].same_as(func.params[-1])  # the output; the bias is in L1
    assert fetched[1].same_as(func.params[1]) or fetched[1].same_as(func.params[-2])


def test_loops_that_are_no_epilogue_are_left():
    """Annotations may come from a tuning record of somebody else."""
    func = matmul(64, 128, 96)
    schedule = emit(func, tile(8, 32, prefetch_bytes=0))
    [init] = schedule.get_loops(schedule.get_sblock("matmul_init"))[-1:]
    outer = schedule.get_loops(schedule.get_sblock("matmul_update"))[0]
    for loop in (init, outer):
        schedule.annotate(loop, PREFETCH_EPILOGUE, 1)
    assert prefetches(finish(schedule.mod["main"], func)) == []


@pytest.mark.parametrize(
    "rows, depth, spec", [(LARGE, LONG, AVX512), (SMALL, SHORT, AVX512)], ids=["long", "small"]
)
def test_elsewhere_the_caches_suffice(rows, depth, spec):
    func = scheduled(matmul(rows, depth, 96, spec), tile(8, 32, spec, prefetch_bytes=0))
    assert prefetches(func) == []


@pytest.mark.skipif(platform.machine() != "x86_64", reason="prefetches are written for x86")
@pytest.mark.parametrize("rows, columns, width", [(12544, 64, 32), (12547, 96, 48)])
def test_partial_tiles_compute_the_same(rows, columns, width):
    """Prefetch addresses of the last tile are beyond the output; a prefetch does not fault."""
    host = resolve_target("host", 2)
    func = harness.matmul(rows, SHORT, columns, host.to_tvm())
    hint = tile(8, width, host, prefetch_bytes=0)
    with_calls = scheduled(func, hint)
    assert len(prefetches(with_calls)) == 1
    x = np.random.default_rng(0).standard_normal((rows, SHORT)).astype("float32")
    w = np.random.default_rng(1).standard_normal((SHORT, columns)).astype("float32")
    np.testing.assert_allclose(called(with_calls, host, x, w), x @ w, rtol=1e-4, atol=1e-4)
