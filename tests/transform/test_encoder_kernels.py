"""The kernels of a BERT layer from ONNX on GPUs: one of each GEMM, attention and LayerNorm."""

from __future__ import annotations

import pytest
from tvm import relax

from benchmarks.zoo_bert import bert_encoder
from tvmopt.device.gpus import GPUS
from tvmopt.frontend import import_onnx, prepare
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower


@pytest.mark.parametrize("gpu", ["nvidia-h200", "nvidia-a100"])
def test_kernels_of_a_layer(gpu: str) -> None:
    model = bert_encoder(3, hidden=128, heads=2, feed_forward=256)
    shapes = {"hidden_states": (4, 32, 128), "attention_mask": (4, 32)}
    imported = import_onnx(prepare(model, shapes).model)
    converted = convert_module(imported, dtype="float16", narrow_norms=True).mod
    lowered = lower(converted, GPUS[gpu].to_tvm())
    calls = [
        binding
        for binding in lowered["main"].body.blocks[0].bindings
        if isinstance(binding.value, relax.Call) and binding.value.op.name == "relax.call_tir"
    ]
    kinds = ("attention", "layer_norm", "matmul")
    found = [
        (kind, [int(extent) for extent in call.var.ty.shape], str(call.var.ty.dtype))
        for call in calls
        for kind in kinds
        if kind in call.value.args[0].name_hint
    ]
    layer = [
        ("matmul", [4, 32, 384], "float16"),  # Q, K and V
        ("attention", [4, 32, 2, 64], "float16"),
        ("matmul", [4, 32, 128], "float16"),  # plus the residual
        ("layer_norm", [4, 32, 128], "float16"),
        ("matmul", [4, 32, 256], "float16"),  # and GELU
        ("matmul", [4, 32, 128], "float16"),  # plus the residual
        ("layer_norm", [4, 32, 128], "float16"),
    ]
    last = [(*kernel[:2], "float32") for kernel in layer[-2:]]  # the output of the model
    assert found == [*layer, *layer, *layer[:-2], *last]
    assert len(calls) == len(found) + 2  # a cast of the input, and the mask
