"""Partial evaluation of a float model: one layer and everything downstream of it.

To measure the effect of one layer's error on the outputs, only the layer and its downstream nodes
run. All other values come from one recorded run of the float model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx

from tvmopt.frontend.library_errors import onnxruntime_errors
from tvmopt.frontend.prepare import session_options
from tvmopt.quantize.graph import Graph, reads

if TYPE_CHECKING:
    import onnxruntime as ort

Arrays = dict[str, np.ndarray]


class Recording:
    """Intermediate values of the float model on some batches, computed once.

    Args:
        model: A prepared float model.
        names: Tensors to record; constants and inputs are allowed.
        batches: Inputs by name, one mapping per call.
        limit_bytes: Memory limit in bytes: recording stops when values exceed it, but records at
            least one batch.
        until: Value of ``time.monotonic()`` at which recording stops, after at least one batch.

    Attributes:
        values: Values by name, for each recorded batch.
        is_out_of_time: Whether recording stopped for time.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        names: Iterable[str],
        batches: Iterable[Mapping[str, np.ndarray]],
        limit_bytes: int,
        until: float = math.inf,
    ) -> None:
        index = Graph(model.graph)
        self.output_names = [o.name for o in model.graph.output]
        inner = [n for n in dict.fromkeys(names) if n in index.producer]
        augmented = onnx.ModelProto()
        augmented.CopyFrom(model)
        augmented.graph.output.extend(
            onnx.ValueInfoProto(name=n) for n in inner if n not in index.outputs
        )
        wanted = list(dict.fromkeys([*self.output_names, *inner]))
        session = new_session(augmented)
        self.values: list[Arrays] = []
        self.is_out_of_time = False
        used = 0
        for inputs in batches:
            if self.values and used + used // len(self.values) > limit_bytes:
                break
            if self.values and time.monotonic() >= until:
                self.is_out_of_time = True
                break
            found = dict(zip(wanted, session.run(wanted, dict(inputs)), strict=True))
            self.values.append({**inputs, **found})
            used += sum(value.nbytes for value in found.values())

    def outputs(self, batch: int) -> list[np.ndarray]:
        """Return the float model's outputs on a recorded batch."""
        return [self.values[batch][name] for name in self.output_names]


class Downstream:
    """The nodes downstream of one tensor, and their other inputs.

    Args:
        graph: The main graph.
        tensor: A tensor of the graph.
    """

    def __init__(self, graph: Graph, tensor: str) -> None:
        self.tensor = tensor
        after = {tensor}
        self.nodes: list[onnx.NodeProto] = []
        for node in graph.nodes:  # in topological order
            if after.intersection(reads(node)):
                self.nodes.append(node)
                after.update(filter(None, node.output))
        read = dict.fromkeys(name for node in self.nodes for name in reads(node))
        made = {name for node in self.nodes for name in node.output}
        self.constants = [name for name in read if name in graph.constants]
        self.inputs = [n for n in read if n not in made and n not in graph.constants]
        self.outputs = [name for name in graph.outputs if name in made]
        self._is_output = tensor in graph.outputs

    def compile(self, model: onnx.ModelProto, graph: Graph, example: Arrays) -> _DownstreamRun:
        """Return a function from values of :attr:`inputs` to the affected outputs of the model."""
        if not self.outputs:
            return _DownstreamRun(None, self, self._is_output)
        part = part_of(
            model,
            self.nodes,
            [value_info(name, example[name]) for name in self.inputs],
            self.outputs,
            [graph.constants[name] for name in self.constants],
        )
        return _DownstreamRun(new_session(part), self, self._is_output)


class _DownstreamRun:
    def __init__(
        self, session: ort.InferenceSession | None, part: Downstream, is_output: bool
    ) -> None:
        self._session, self._part, self._is_output = session, part, is_output

    def __call__(self, value: np.ndarray, recorded: Arrays) -> Arrays:
        """Return the outputs, by name, that change when the tensor has another value."""
        changed = {self._part.tensor: value} if self._is_output else {}
        if self._session is None:
            return changed
        feed = {name: recorded[name] for name in self._part.inputs}
        feed[self._part.tensor] = value
        found = self._session.run(self._part.outputs, feed)
        return {**changed, **dict(zip(self._part.outputs, found, strict=True))}


def new_session(model: onnx.ModelProto, threads: int = 0) -> ort.InferenceSession:
    """Return a quiet ONNX Runtime session on the CPU.

    Args:
        model: The model.
        threads: As of :func:`tvmopt.frontend.prepare.session_options`.
    """
    import onnxruntime as ort

    source = model.SerializeToString()
    options = session_options(model, threads)
    # Many sessions alternate: spinning threads of one session would slow down the next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except onnxruntime_errors():
        # Some fusions of whole transformer layers fail on a part of one.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def part_of(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    constants: Sequence[onnx.TensorProto],
) -> onnx.ModelProto:
    """Return a model of some nodes of ``model``; ONNX Runtime infers the output types."""
    part = onnx.ModelProto(ir_version=model.ir_version)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    part.graph.name = "part"
    part.graph.node.extend(nodes)
    part.graph.input.extend(inputs)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    part.graph.initializer.extend(constants)
    return part


def value_info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    """Return the ONNX type and shape of an array."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, value.shape)
