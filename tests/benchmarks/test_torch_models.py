"""ONNX models as PyTorch modules: the outputs of ONNX Runtime, or None if unsupported."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from benchmarks.torch_models import torch_module
from benchmarks.zoo_topologies import mlp, mobilenet_v2, resnet
from tvmopt.frontend import parse_input_shapes, prepare
from tvmopt.frontend.reference import Reference

MODELS = {
    "resnet": lambda: resnet((1, 2), bottleneck=True, image_size=32, classes=10, width=8),
    "mobilenet": lambda: mobilenet_v2(((1, 16, 1, 1), (6, 24, 2, 2)), 32, 10, 32),
    "mlp": lambda: mlp((4, 32, 3), (8, 6), 10),
}


@pytest.mark.parametrize("name", MODELS)
def test_pytorch_has_the_same_model(name):
    torch = pytest.importorskip("torch", reason="PyTorch comes with the bench extra")
    model = MODELS[name]()
    shape = (1, 4, 32, 3) if name == "mlp" else (1, 3, 32, 32)
    text = "image:" + "x".join(map(str, shape))
    prepared = prepare(model, parse_input_shapes(text))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    [expected] = Reference(prepared.reference)({"image": x})
    with torch.inference_mode():
        [found] = torch_module(prepared.model)(torch.from_numpy(x))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_an_operator_that_pytorch_lacks_here_gives_no_module(make_model):
    pytest.importorskip("torch", reason="PyTorch comes with the bench extra")
    node = onnx.helper.make_node("Erf", ["x"], ["y"])
    model = make_model([node], {"x": ("float32", (2, 3))}, {"y": ("float32", (2, 3))})
    assert torch_module(model) is None
