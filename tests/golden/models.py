"""Models of the record: the zoo's topologies that need no download, in the dtype of a device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import onnx
from tvm import IRModule

from benchmarks.zoo_bert import bert_encoder
from benchmarks.zoo_topologies import mlp, mobilenet_v2, resnet

from . import access

_IMAGE = "image:1x3x224x224"


def _light(name: str) -> Callable[[], onnx.ModelProto]:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return lambda: onnx.load(folder / f"light_{name}.onnx")


#: How each is made, and its input shapes. ResNets repeat a stage's kernels: two blocks have all.
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "resnet18": (lambda: resnet((2, 2, 2, 2), bottleneck=False), _IMAGE),
    "resnet50": (lambda: resnet((2, 2, 2, 2), bottleneck=True), _IMAGE),
    "mobilenet_v2": (mobilenet_v2, _IMAGE),
    "mlp": (mlp, "image:128x224x224x3"),
    "bert_layer": (bert_encoder, "hidden_states:1x128x768,attention_mask:1x128"),
    "light_squeezenet": (_light("squeezenet"), ""),
    "light_shufflenet": (_light("shufflenet"), ""),
    "light_inception_v1": (_light("inception_v1"), ""),
    "light_densenet121": (_light("densenet121"), ""),
}


@functools.lru_cache(maxsize=1)
def _imported(name: str) -> IRModule:
    make, shapes = MODELS[name]
    return access.imported(make(), shapes)


def module(name: str, dtype: str, layout: str) -> IRModule:
    """A model in a dtype and a layout of its convolutions."""
    return access.converted(_imported(name), dtype, layout)
