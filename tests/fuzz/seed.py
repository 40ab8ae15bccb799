"""What a seed model of the mutations is, and helpers that make one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF, INT64, BOOL = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Seed:
    """A model to mutate.

    Attributes:
        model: The model, with its tensors inside.
        input_shapes: The parameter ``input_shapes`` of its conversion.
    """

    model: onnx.ModelProto
    input_shapes: str = ""


def value(name: str, shape: Sequence[int | str] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    """Return the declaration of a value."""
    return helper.make_tensor_value_info(name, kind, shape)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, ArrayLike] | None = None,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """Return a model of one graph, with its constants as initializers."""
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    ids = [helper.make_opsetid("", opset)]
    ids += [helper.make_opsetid(name, 1) for name in {each.domain for each in functions}]
    return helper.make_model(graph, opset_imports=ids, functions=functions, ir_version=9)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Return random numbers, the same ones for the same arguments."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)
