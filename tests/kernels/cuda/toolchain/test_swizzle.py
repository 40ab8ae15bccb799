"""Swizzled tiles: what ldmatrix reads is where the copies have put it, and no bank is met twice."""

from __future__ import annotations

import dataclasses
import re

import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx

from tests.kernels.cuda.products import Case
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.common.passes import PASS_CONFIG
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.mma.family import MmaMatmul
from tvmopt.kernels.cuda.toolchain.swizzle import swizzle

ARCH = GPUS["nvidia-h200"]
HINT = CudaHint(
    "mma_matmul", ARCH, block=(64, 128), warp=(32, 64), rstep=64, stages=3, async_copy=True,
    options=(("ahead", 1), ("swizzle", 1)),
)  # fmt: skip


def lowered(case: Case, hint: CudaHint) -> tirx.PrimFunc:
    """The device function before our passes."""
    func = MmaMatmul().emit(case.func(), hint).mod["main"].with_attr("global_symbol", "main")
    passes, _, _ = tvm.tirx.compilation_pipeline.get_tir_pipeline("s_tir")
    target = ARCH.to_tvm()
    with tvm.transform.PassContext(config=PASS_CONFIG), target:
        mod = passes(tvm.tirx.transform.BindTarget(target)(tvm.IRModule({"main": func})))
    [kernel] = [f for var, f in mod.functions.items() if "kernel" in var.name_hint]
    return kernel


def places(func: tirx.PrimFunc) -> list[tuple[str, str]]:
    """Each call and its place in shared memory, in order, as Python of ``x`` and ``y``."""
    names: dict[tirx.Var, ir.Expr] = {}
    found: list[tuple[str, ir.Expr]] = []

    def on_bind(bind: tirx.Bind) -> None:
        names[bind.var] = bind.value

    def on_call(call: ir.Call) -> None:
        name = str(getattr(call.op, "name", ""))
        if name.endswith("ldmatrix"):
            found.append(("load", call.args[5].args[2] + call.args[6]))
        elif name.endswith("cp_async_raw"):
            found.append(("copy", call.args[1]))

    tvm_ffi.structural_walk(func.body, (tirx.Bind, on_bind), order="pre")
    tvm_ffi.structural_walk(func.body, (ir.Call, on_call), order="pre")
    result = []
    for kind, place in found:
        for _ in range(9):
            place = tvm_ffi.structural_map(place, (tirx.Var, lambda var: names.get(var, var)))
        text = re.sub(r"T\.\w+\((\d+)\)", r"\1", str(place))
        text = text.replace("threadIdx_x", "x").replace("threadIdx_y", "y")
        result.append((kind, re.sub(r"\bax\w+", "1", text)))
    return result


def at(text: str, x: int, y: int) -> int:
    return int(eval(text, {"x": x, "y": y}))


@pytest.mark.parametrize(
    ("case", "rstep"),
    [
        (Case("nt", 256, 256, 512, "float16"), 64),
        (Case("nn", 256, 256, 512, "bfloat16"), 64),
        (Case("tn", 256, 256, 512, "float16"), 64),
        (Case("nt", 256, 256, 1024, "int8", out="int32"), 128),
    ],
    ids=str,
)
def test_reads_what_was_copied(case, rstep) -> None:
    before = lowered(case, dataclasses.replace(HINT, rstep=rstep))
    plain, moved = places(before), places(swizzle(before))
    assert [kind for kind, _ in plain] == [kind for kind, _ in moved]
    assert {"copy", "load"} == {kind for kind, _ in plain}
    piece = 16 if case.dtype == "int8" else 8
    where: dict[int, int] = {}  # of each piece of 16 bytes
    for (kind, old), (_, new) in zip(plain, moved, strict=True):
        for y in range(4):
            for x in range(32):
                was, now = at(old, x, y), at(new, x, y)
                assert was % piece == 0 == now % piece
                assert where.setdefault(was, now) == now, (kind, old, x, y)
            if kind == "load":  # eight lanes name the rows of a matrix
                for first in range(0, 32, 8):
                    banks = {at(new, x, y) % (8 * piece) for x in range(first, first + 8)}
                    assert len(banks) == 8
    assert len(set(where.values())) == len(where)
    assert any(was != now for was, now in where.items())


def test_padded_tiles_stay() -> None:
    padded = dataclasses.replace(HINT, options=(("ahead", 1),))
    func = lowered(Case("nt", 256, 256, 512, "float16"), padded)
    assert swizzle(func).same_as(func)


def test_takes_less_shared_memory() -> None:
    case = Case("nt", 256, 256, 512, "float16")
    plain = dataclasses.replace(HINT, options=(("ahead", 1),))
    for hint, word in ((HINT, True), (plain, False)):
        func = MmaMatmul().emit(case.func(), hint).mod["main"]
        source = build_kernels({"main": func}, ARCH).imports[0].inspect_source("cuda")
        assert ("^" in source.partition("__global__")[2]) == word
