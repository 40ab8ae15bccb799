"""ONNX's Attention becomes one function: results of ONNX's node tests."""

from __future__ import annotations

import functools
import importlib

import numpy as np
import pytest
import tvm
from onnx.backend.test.case import node
from tvm import relax

from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.kernels.attention.problem import problem_of
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.transform.attention import kernels
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE
from tvmopt.transform.lower import lower

_FUSED = (
    "test_attention_4d",
    "test_attention_4d_gqa_causal",
    "test_attention_4d_attn_mask_4d_causal",
    "test_attention_4d_attn_mask_bool_4d",
    "test_attention_3d_diff_heads_sizes_scaled",
    "test_attention_4d_with_past_and_present",
)
_SEPARATE = ("test_attention_4d_softcap", "test_attention_4d_with_qk_matmul")


@functools.cache
def _cases():
    """Return the cases of the operator; ``collect_testcases`` makes all, for ten seconds."""
    importlib.import_module("onnx.backend.test.case.node.attention")
    return {case.name: case for case in node._NodeTestCases}


@pytest.mark.sample(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*_FUSED, *_SEPARATE])
def test_node(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "pays", lambda problem, arch: problem.dtype == "float32")
    case = _cases()[name]
    model = prepare(case.model, {}).model
    target = resolve_target("host", 1)
    lowered = lower(import_onnx(model, layer_table(model)), target.to_tvm())
    functions = [f for _, f in lowered.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert sum(problem_of(func) is not None for func in functions) == (name in _FUSED)
    scheduled, _ = schedule_module(lowered, target.arch())
    with tvm.transform.PassContext(opt_level=3):
        built = tvm.compile(scheduled, target.to_tvm(), tir_pipeline=CPU_PIPELINE)
    [(inputs, outputs)] = case.data_sets
    given = [
        value for value, info in zip(inputs, case.model.graph.input, strict=True)
        if info.name in {i.name for i in model.graph.input}
    ]  # fmt: skip
    got = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, given))
    got = [got] if len(outputs) == 1 else list(got)
    for ours, wanted in zip(got, outputs, strict=True):
        np.testing.assert_allclose(ours.numpy(), wanted, rtol=1e-4, atol=1e-5)
