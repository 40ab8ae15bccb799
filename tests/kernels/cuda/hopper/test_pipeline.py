"""Generated kernels beside other functions, in one Relax module."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx
from tvm.s_tir import dlight

from tests.kernels.cuda.hopper.sources import H200, functions, lowered
from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.family import HopperConv, HopperGemm
from tvmopt.kernels.cuda.hopper.hints import CONV, GEMM, hint_of
from tvmopt.kernels.cuda.hopper.kernel import kernel
from tvmopt.kernels.cuda.pipeline import PIPELINE, is_generated

SMALL = Config(consumers=1, columns=64, stages=4, buffers=1)


@pytest.mark.parametrize("rows", [128, "m"])
def test_mixed_module(rows):
    mod = lowered(
        [("x", (rows, 256), "float16"), ("w", (256, 128), "float16")],
        lambda emit, x, w: emit(relax.op.nn.softmax(emit(relax.op.matmul(x, w)))),
    )
    hint = hint_of(GEMM, SMALL, "float16", H200)
    for name, func in functions(mod).items():
        made = HopperGemm().emit(func, hint)
        assert HopperConv().emit(func, hint) is None
        if made is not None:
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


def test_kernel_says_why_not():
    mod = lowered(
        [("x", (64, 64), "float32"), ("w", (64, 64), "float32")],
        lambda emit, x, w: emit(relax.op.matmul(x, w)),
    )
    [func] = functions(mod).values()
    hint = hint_of(GEMM, SMALL, "float16", H200)
    with pytest.raises(ConfigError, match="no Hopper kernel for this function: inputs must be"):
        kernel(func, hint)
    assert HopperGemm().emit(func, hint) is None


def test_kernel_of_the_wrong_template():
    mod = lowered(
        [("x", (64, 64), "float16"), ("w", (64, 64), "float16")],
        lambda emit, x, w: emit(relax.op.matmul(x, w)),
    )
    [func] = functions(mod).values()
    with pytest.raises(ConfigError, match="no template of this function"):
        kernel(func, hint_of(CONV, SMALL, "float16", H200, (1, 8, 8)))
