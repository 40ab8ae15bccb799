"""One layer converted alone: its result in a lower type, and what that does to the outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.evaluate.accuracy import AccuracyMeter
from tvmopt.evaluate.dataset import Batch
from tvmopt.quantize.downstream import (
    Arrays,
    Downstream,
    Recording,
    new_session,
    part_of,
    value_info,
)
from tvmopt.quantize.emulate import (
    CASTABLE,
    quantised_activation,
    quantised_weight,
    round_to,
    round_weight,
    weight_axis,
)
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.ranges import Ranges
from tvmopt.quantize.scheme import Scheme
from tvmopt.quantize.select import data_inputs, why_float


@dataclasses.dataclass(frozen=True)
class Setting:
    """What every probe needs: the model, its float values, and how to quantise."""

    model: onnx.ModelProto
    graph: Graph
    scheme: Scheme
    ranges: Ranges | None

    def why_not(self, node: onnx.NodeProto, dtype: str) -> str | None:
        """Why a layer cannot be converted to a type; None when it can."""
        if dtype != "int8":
            operands = [n for n in node.input if n]
            floats = all(self.graph.is_float(name) for name in operands)
            if node.op_type not in CASTABLE:
                return f"{node.op_type} has no {dtype} form"
            return None if floats else "its operands are not float32"
        reason = why_float(self.graph, node, self.scheme)
        if reason is not None or self.ranges is None:
            return reason
        if all(self.ranges.usable(name) for name in data_inputs(self.graph, node)):
            return None
        return "the range of its input is not finite"

    def activations(self, node: onnx.NodeProto, values: Arrays, dtype: str) -> Arrays:
        """Activations that a converted layer reads, by name."""
        found = {n: values[n] for n in node.input if n and n not in self.graph.constants}
        if dtype == "float32":
            return found
        if dtype != "int8":
            return {name: round_to(value, dtype) for name, value in found.items()}
        assert self.ranges is not None
        return {
            name: quantised_activation(value, *self.ranges.tensors[name], self.scheme)
            for name, value in found.items()
        }

    def weights(self, node: onnx.NodeProto, dtype: str) -> Arrays:
        """Constants that a converted layer reads, by name."""
        found = {n: self.graph.array(n) for n in node.input if n in self.graph.constants}
        if dtype == "int8":  # a bias has 32 bits
            weight = node.input[1]
            if weight in found:
                axis = weight_axis(node, self.scheme)
                found[weight] = quantised_weight(found[weight], axis)
        elif dtype != "float32":
            weight = node.input[1]
            if weight in found:
                found[weight] = round_weight(found[weight], node, dtype)
        return found


class Layer:
    """A layer that can be run in several types.

    Args:
        setting: The model.
        node: A layer that :meth:`Setting.why_not` has nothing against.
        example: Values of one recorded batch.
    """

    def __init__(self, setting: Setting, node: onnx.NodeProto, example: Arrays) -> None:
        self._setting, self._node = setting, node
        operands = {
            **setting.activations(node, example, "float32"),
            **setting.weights(node, "float32"),
        }
        inputs = [value_info(name, value) for name, value in operands.items()]
        self._session = new_session(part_of(setting.model, [node], inputs, [node.output[0]], []))
        self._weights: dict[str, Arrays] = {}

    def __call__(self, values: Arrays, dtype: str) -> np.ndarray:
        """Its result in type ``dtype``, ``"float32"`` included."""
        if dtype not in self._weights:
            self._weights[dtype] = self._setting.weights(self._node, dtype)
        activations = self._setting.activations(self._node, values, dtype)
        result: np.ndarray = self._session.run(None, {**activations, **self._weights[dtype]})[0]
        return round_to(result, dtype) if dtype in HALF_FLOATS else result

    def own_errors(self, values: Arrays, dtypes: Sequence[str]) -> dict[str, float]:
        """Error power over power of its result, by type."""
        exact = self(values, "float32")
        return {dtype: min(1.0, noise_ratio(self(values, dtype), exact)) for dtype in dtypes}


class Probe:
    """A layer in several types, and what that does to the outputs of the model.

    Args:
        setting: The model.
        node: A layer that :meth:`Setting.why_not` has nothing against.
        after: What follows from its result.
        example: Values of one recorded batch.
    """

    def __init__(
        self, setting: Setting, node: onnx.NodeProto, after: Downstream, example: Arrays
    ) -> None:
        self._layer = Layer(setting, node, example)
        self._after = after.compile(setting.model, setting.graph, example)

    def __call__(self, values: Arrays, dtype: str) -> Arrays:
        """Outputs of the model that change when this layer has type ``dtype``, by name."""
        return self._after(self._layer(values, dtype), values)


class Errors:
    """Errors of the outputs over batches."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._ratios: dict[str, list[float]] = {name: [] for name in names}
        self._meter = AccuracyMeter("fidelity", has_labels=False)
        self.samples = 0

    def add(self, batch: Batch, recording: Recording, at: int, changed: Arrays) -> None:
        """Add the outputs that changed on recorded batch ``at``."""
        expected = recording.outputs(at)
        actual = [changed.get(n, w) for n, w in zip(self._names, expected, strict=True)]
        for name, got, want in zip(self._names, actual, expected, strict=True):
            self._ratios[name].append(noise_ratio(got, want))
        self._meter.add(actual, expected, None, batch.valid, batch.padding)
        self.samples += batch.valid

    @property
    def error(self) -> float:
        """Error power over power, averaged over batches, of the worst output.

        A batch counts 1 at most, so that one with outputs near zero does not outweigh all others;
        numbers that overflow count as infinite.
        """
        return max(
            sum(ratio if ratio == math.inf else min(1.0, ratio) for ratio in found) / len(found)
            for found in self._ratios.values()
        )

    @property
    def cosine(self) -> float:
        """Smallest cosine of an output."""
        return self._meter.result().cosine

    @property
    def disagreement(self) -> float | None:
        """Share of rows with another top-1."""
        agreement = self._meter.result().agreement
        return None if agreement is None else 1 - agreement


def noise_ratio(actual: np.ndarray, expected: np.ndarray) -> float:
    """Error power over power; of integers, the share that differs. Infinite at an overflow."""
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind != "f":
        return float(np.mean(actual != expected))
    finite = np.isfinite(expected)
    got, want = actual, expected
    if not finite.all():
        got, want = actual[finite], expected[finite]
    got, want = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    if not np.isfinite(got).all():
        return math.inf
    noise, power = float((got - want) @ (got - want)), float(want @ want)
    if noise == 0:
        return 0.0
    return noise / power if power > 0 else 1.0
