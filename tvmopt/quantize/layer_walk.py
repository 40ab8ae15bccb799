"""Run a quantized model layer by layer, and fit each layer to its inputs in the quantized model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from tvmopt.quantize.channel_means import channel_axis, constant_bias, mean_of
from tvmopt.quantize.downstream import new_session, part_of, value_info
from tvmopt.quantize.exact_pairs import partners
from tvmopt.quantize.graph import Graph, attributes, reads
from tvmopt.quantize.ranges import Inputs
from tvmopt.quantize.rounding import Rounding, patches_of, rounded

_MOST_INPUTS = 2048  # of a dot product; larger covariances take too long to factorise
_POSITIONS = 4096  # at which the inputs of a layer are taken
_LEAST_POSITIONS = 2  # for each input of a dot product


@dataclasses.dataclass(frozen=True)
class LayerFit:
    """Rounding and bias of a layer; None: as they are."""

    rounding: Rounding | None
    bias: np.ndarray | None


class LayerWalk:
    """The quantized model, of which a part has run; it holds what the other part reads.

    Args:
        model: The quantized model.
        batches: The samples.
        exact_pairs: Whether pairs of products must stay within int16, see :mod:`.exact_pairs`.
    """

    def __init__(
        self, model: onnx.ModelProto, batches: Sequence[Inputs], exact_pairs: bool = False
    ) -> None:
        self._model, self._graph, self._exact_pairs = model, Graph(model.graph), exact_pairs
        self._nodes = {node.name: node for node in self._graph.nodes}
        self._values: list[dict[str, np.ndarray]] = [dict(inputs) for inputs in batches]
        self._left = {id(node): node for node in self._graph.nodes}

    def fit(
        self,
        layer: onnx.NodeProto,
        floats: Graph,
        mean: np.ndarray | None,
        rng: np.random.Generator,
    ) -> LayerFit:
        """Fit one layer; the layers before it must have been fitted.

        Args:
            layer: The layer of the float model.
            floats: The float model.
            mean: Mean of each of its output channels in the float model; None without a bias.
            rng: Draws the positions of its inputs.
        """
        node = self._nodes[layer.name]
        activations = [n for n in node.input[:2] if not self._is_weight(n)]
        self._compute(activations)
        if len(activations) > 1:  # a matmul of two activations
            return LayerFit(None, None)
        value = floats.array(layer.input[1]).astype(np.float32)
        codes, scale = self._weight(node)
        rounding = None
        patches = self._patches(node, value.shape, rng)
        if patches is not None:
            new = _codes(node, value / scale, patches, self._exact_pairs)
            rounding = Rounding.of(new, codes)
            codes = new
        return self._run(layer, node, codes.astype(np.float32) * scale, floats, mean, rounding)

    def move_bias(
        self, layer: onnx.NodeProto, floats: Graph, mean: np.ndarray | None
    ) -> np.ndarray | None:
        """Return the bias with which a layer has its means; its weights stay as they are.

        Args:
            layer: The layer of the float model; the layers before it must have been run.
            floats: The float model.
            mean: Mean of each of its output channels in the float model; None without a bias.

        Returns:
            None where the layer keeps its bias.
        """
        node = self._nodes[layer.name]
        constant = node.input[1] in self._graph.constants
        if not constant and not self._is_weight(node.input[1]):
            return None
        self._compute([node.input[0]])
        if constant:
            weight = self._graph.array(node.input[1])
        else:
            codes, scale = self._weight(node)
            weight = codes.astype(np.float32) * scale
        return self._run(layer, node, weight, floats, mean, None).bias

    def _run(
        self,
        layer: onnx.NodeProto,
        node: onnx.NodeProto,
        weight: np.ndarray,
        floats: Graph,
        mean: np.ndarray | None,
        rounding: Rounding | None,
    ) -> LayerFit:
        """Run the layer with its integer weights; move its bias so that the mean is ``mean``."""
        alone = onnx.NodeProto()
        alone.CopyFrom(layer)
        x = node.input[0]
        alone.input[0], alone.output[0] = x, node.output[0]
        bias = constant_bias(floats, layer)
        constants = [numpy_helper.from_array(weight.astype(np.float32), alone.input[1])]
        if bias is not None:
            constants.append(numpy_helper.from_array(bias, alone.input[2]))
        example = self._values[0][x]
        part = part_of(self._model, [alone], [value_info(x, example)], [node.output[0]], constants)
        session = new_session(part)
        results = [session.run(None, {x: values[x]})[0] for values in self._values]
        axis = channel_axis(layer, results[0])
        moved = None
        if bias is not None and mean is not None:
            shift = mean - mean_of(results, axis)
            if np.isfinite(shift).all():
                moved = bias + shift.astype(np.float32)
                along = shift.astype(np.float32).reshape(
                    [-1 if i == axis else 1 for i in range(results[0].ndim)]
                )
                results = [result + along for result in results]
        for values, result in zip(self._values, results, strict=True):
            values[node.output[0]] = result
        self._done([node])
        return LayerFit(rounding, moved)

    def _compute(self, names: Sequence[str]) -> None:
        """Run the nodes that ``names`` need and that have not run."""
        needed: dict[int, onnx.NodeProto] = {}
        pending = [n for n in names if n not in self._values[0]]
        while pending:
            node = self._graph.producer.get(pending.pop())
            if node is None or id(node) in needed:
                continue
            needed[id(node)] = node
            pending += [n for n in reads(node) if n not in self._values[0]]
        if not needed:
            return
        nodes = [node for node in self._graph.nodes if id(node) in needed]
        made = {name for node in nodes for name in node.output if name}
        read = dict.fromkeys(name for node in nodes for name in reads(node))
        inputs = [n for n in read if n in self._values[0]]
        constants = [self._graph.constants[n] for n in read if n in self._graph.constants]
        kept = [
            name for name in made
            if name in names or any(id(n) in self._left and id(n) not in needed
                                    for n in self._graph.consumers.get(name, []))
        ]  # fmt: skip
        infos = [value_info(name, self._values[0][name]) for name in inputs]
        session = new_session(part_of(self._model, nodes, infos, kept, constants))
        for values in self._values:
            found = session.run(kept, {name: values[name] for name in inputs})
            values.update(zip(kept, found, strict=True))
        self._done(nodes)

    def _done(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Forget values that no node reads any more."""
        for node in nodes:
            self._left.pop(id(node), None)
        for name in list(self._values[0]):
            if not any(id(n) in self._left for n in self._graph.consumers.get(name, [])):
                for values in self._values:
                    del values[name]

    def _is_weight(self, name: str) -> bool:
        node = self._graph.producer.get(name)
        return node is not None and node.input[0] in self._graph.constants

    def _weight(self, node: onnx.NodeProto) -> tuple[np.ndarray, np.ndarray]:
        """Return the integer weights of a layer, and their scales along their axis."""
        dequantise = self._graph.producer[node.input[1]]
        codes, scale = (self._graph.array(name) for name in dequantise.input[:2])
        if scale.ndim:
            axis = attributes(dequantise).get("axis", 1) % codes.ndim
            scale = scale.reshape([-1 if i == axis else 1 for i in range(codes.ndim)])
        return codes, scale

    def _patches(
        self, node: onnx.NodeProto, shape: tuple[int, ...], rng: np.random.Generator
    ) -> np.ndarray | None:
        if node.op_type == "ConvTranspose":
            return None
        inputs = int(np.prod(shape[1:])) if node.op_type == "Conv" else shape[0]
        if inputs > _MOST_INPUTS:
            return None
        most = -(-max(_POSITIONS, _LEAST_POSITIONS * inputs) // len(self._values))
        parts = [patches_of(node, v[node.input[0]], shape, most, rng) for v in self._values]
        taken = [part for part in parts if part is not None]
        return np.concatenate(taken, axis=1) if taken else None


def _codes(
    node: onnx.NodeProto, steps: np.ndarray, patches: np.ndarray, exact_pairs: bool
) -> np.ndarray:
    """Return the integer weights of a layer in the shape of its weight."""
    groups = len(patches)
    others = partners(node, steps.shape) if exact_pairs else None
    if node.op_type == "Conv":
        rows = steps.reshape(groups, len(steps) // groups, -1)
        return rounded(rows, patches, others).reshape(steps.shape)
    is_transposed = node.op_type == "Gemm" and attributes(node).get("transB", 0)
    rows = steps if is_transposed else steps.T
    found = rounded(rows[None], patches, others)[0]
    return found if is_transposed else np.ascontiguousarray(found.T)
