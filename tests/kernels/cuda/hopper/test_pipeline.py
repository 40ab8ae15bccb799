"""Generated and scheduled kernels in one Relax module."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx
from tvm.s_tir import dlight

from tests.kernels.cuda.hopper.sources import H200, conv_config, functions, gemm_config, lowered
from tvmopt.kernels.cuda.hopper.family import HopperConv, HopperGemm
from tvmopt.kernels.cuda.pipeline import PIPELINE, is_generated
from tvmopt.kernels.workload import Refusal

SMALL = gemm_config(consumer_warpgroups=1, tile_n=64, epilogue_buffers=1)


@pytest.mark.parametrize("rows", [128, "m"])
def test_mixed_module(rows):
    mod = lowered(
        [("x", (rows, 256), "float16"), ("w", (256, 128), "float16")],
        lambda emit, x, w: emit(relax.op.nn.softmax(emit(relax.op.matmul(x, w)))),
    )
    for name, func in functions(mod).items():
        made = HopperGemm().emit(func, SMALL)
        assert isinstance(HopperConv().emit(func, conv_config(SMALL)), Refusal)
        if not isinstance(made, Refusal):
            assert isinstance(made, tirx.PrimFunc)
            assert ("global_symbol" in made.attrs) == ("global_symbol" in func.attrs)
            mod[name] = made
    assert sum(map(is_generated, functions(mod).values())) == 1
    target = H200.to_tvm()
    with target:
        rules = dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(), dlight.gpu.Fallback()
        mod = dlight.ApplyDefaultSchedule(*rules)(mod)
    built = tvm.compile(mod, target=target, tir_pipeline=PIPELINE)
    assert any("wgmma" in source for source in _sources(built.mod))


def _sources(mod):
    if mod.kind == "cuda":
        yield mod.inspect_source()
    for child in mod.imports:
        yield from _sources(child)


def test_the_refusal_has_a_reason():
    mod = lowered(
        [("x", (64, 32), "float32"), ("w", (32, 64), "float32")],
        lambda emit, x, w: emit(relax.op.matmul(x, w)),
    )
    [func] = functions(mod).values()
    assert HopperGemm().emit(func, SMALL).reason.startswith("float32 operands are split from K")


def test_a_gemm_is_no_convolution():
    mod = lowered(
        [("x", (64, 64), "float16"), ("w", (64, 64), "float16")],
        lambda emit, x, w: emit(relax.op.matmul(x, w)),
    )
    [func] = functions(mod).values()
    refusal = HopperConv().emit(func, conv_config(SMALL, (1, 8, 8)))
    assert refusal == Refusal("not a convolution")
