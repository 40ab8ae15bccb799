"""Tests of ``benchmarks.cuda_ops`` without a GPU: rows, tables, rejected options."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm

from benchmarks import cuda_ops
from benchmarks.cuda_ops import OpRow, main, summary, table
from benchmarks.cuda_rows import GROUP, SEED_ROWS, row


def test_the_table_has_the_proposals_rows() -> None:
    assert len(SEED_ROWS) == 23
    groups = {name: row(name).group for name in SEED_ROWS}
    assert list(groups.values()).count("matmul") == 6
    assert list(groups.values()).count("matmul float32") == 4
    assert list(groups.values()).count("conv") == 3


@pytest.mark.parametrize("name", ["", "matmul", "fft-3-float16", "copy-3-float16", "copy-3-4-int3"])
def test_unknown_row_names_are_refused(name) -> None:
    with pytest.raises(ValueError, match="a row must be named like copy-128-8192-float16"):
        row(name)


def test_rows_are_read_by_the_command_line(capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--only", "matmul-3"])
    assert end.value.code == 2
    assert "a row must be named like" in capsys.readouterr().err or not _has_gpu()


def test_gpu_benchmarks_need_neither_onnx_nor_mlflow(run_python) -> None:
    scripts = ", ".join(f"benchmarks.cuda_{name}" for name in ("models", "nan_cost", "ops"))
    code = f"import sys, {scripts}; assert not {{'onnx', 'mlflow'}} & set(sys.modules)"
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr


def _has_gpu() -> bool:
    return bool(tvm.runtime.cuda(0).exist)


@pytest.mark.skipif(_has_gpu(), reason="this machine has a GPU")
def test_without_a_gpu_it_ends_with_one_line(capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2 and "needs this machine's GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind", ["linear", "linear_gelu", "linear_residual", "linear_residual_narrow"]
)
def test_linear_layers_equal_numpy(kind) -> None:
    """The function runs on the CPU and equals NumPy."""
    m, n, k = 6, 16, 32
    func = row(f"{kind}-{m}-{n}-{k}-float16").func.with_attr("global_symbol", "main")
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    run = tvm.tirx.build(tvm.IRModule({"main": func}), target=target)["main"]
    rng = np.random.default_rng(0)
    given = [
        rng.standard_normal([int(e) for e in p.shape]).astype(str(p.dtype))
        for p in func.params[:-1]
    ]
    a, b, bias, *residual = given
    want = a.astype("f8") @ b.astype("f8") + bias
    if kind == "linear_gelu":
        want *= 0.5 + 0.5 * np.vectorize(math.erf)(want / math.sqrt(2.0))
    for one in residual:
        want = want + one
    out = np.zeros((m, n), "float32" if kind == "linear_residual" else "float16")
    held = [tvm.runtime.tensor(x) for x in (*given, out)]
    run(*held)
    np.testing.assert_allclose(held[-1].numpy(), want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", ["layer_norm", "layer_norm_wide"])
def test_layer_norms_equal_numpy(kind) -> None:
    """The function runs on the CPU and equals NumPy."""
    func = row(f"{kind}-6-32-float16").func.with_attr("global_symbol", "main")
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    run = tvm.tirx.build(tvm.IRModule({"main": func}), target=target)["main"]
    rng = np.random.default_rng(0)
    x, scale, shift = (
        rng.standard_normal([int(e) for e in p.shape]).astype(str(p.dtype))
        for p in func.params[:-1]
    )
    assert x.dtype == ("float32" if kind == "layer_norm_wide" else "float16")
    centred = x - x.astype("f8").mean(1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-6) * scale + shift
    held = [tvm.runtime.tensor(a) for a in (x, scale, shift, np.zeros((6, 32), "float16"))]
    run(*held)
    np.testing.assert_allclose(held[-1].numpy(), want, rtol=2e-3, atol=2e-3)


def test_int4_matmul_equals_numpy() -> None:
    """The function runs on the CPU and equals NumPy."""
    n, k = 16, 2 * GROUP
    func = row(f"gemv_i4-{n}-{k}-float16").func.with_attr("global_symbol", "main")
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    run = tvm.tirx.build(tvm.IRModule({"main": func}), target=target)["main"]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, k)).astype("float16")
    nibbles = rng.integers(0, 16, (n, k))
    scales = rng.uniform(0.5, 1, (n, k // GROUP)).astype("float16")
    words = (nibbles.reshape(n, -1, 8) << (4 * np.arange(8))).sum(-1).astype("uint32")
    out = tvm.runtime.tensor(np.zeros((1, n), "float16"))
    run(*(tvm.runtime.tensor(a) for a in (x, words, scales)), out)
    weights = (nibbles - 8).astype("float16") * np.repeat(scales, GROUP, 1)
    wanted = x.astype("float32") @ weights.astype("float32").T
    np.testing.assert_allclose(out.numpy(), wanted, rtol=5e-3, atol=5e-2)


def test_tables_say_what_was_measured() -> None:
    ms = {"dlight": 2.0, "top-1": 1.1, "best": 1.0, "torch": 0.9}
    good = OpRow(
        "matmul_nt-64-64-64-float16", "matmul", ms, {}, {"best": 1e-4}, 2.0, 5.0, "20 of 20", "x"
    )
    slow = OpRow("sum-8-8-float32", "memory", {"best": 1.0}, {}, {"best": 1.0}, 9.0, 1.0, "1", "y")
    failed = OpRow("copy-8-8-float16", "memory", problem="all 20 failed: because")
    text = table([good, slow, failed])
    assert "FAILED: all 20 failed: because" in text and "| 20 of 20" in text
    lines = "\n".join(summary([good, slow, failed]))
    assert "correct: 1 of 3" in lines
    assert "slower than the proposal: sum-8-8-float32" in lines
    assert "matmul: PyTorch / top-k 0.9 (geometric mean of 1, 0.9 to 0.9), top-1 / top-k" in lines
    assert good.ratio("torch") == 0.9 and slow.ratio("torch") is None
    assert cuda_ops._out_dtype("matmul_nt-1-1-1-int8") == "int32"
