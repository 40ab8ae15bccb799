"""Convert one layer alone to a lower dtype, and measure the effect on the outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx

from tvmopt.compare import cosine, dot
from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.evaluate.agreement import Agreement, holds_rows_of_scores
from tvmopt.evaluate.dataset import Batch
from tvmopt.frontend.class_scores import ClassScores
from tvmopt.quantize.channel_scales import weight_factors
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
from tvmopt.quantize.exact_pairs import k_axis
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.ranges import Ranges
from tvmopt.quantize.scheme import Scheme
from tvmopt.quantize.select import data_inputs, why_float


@dataclasses.dataclass(frozen=True)
class Setting:
    """Common inputs of all probes: the model, its graph, and the quantization settings."""

    model: onnx.ModelProto
    graph: Graph
    scheme: Scheme
    ranges: Ranges | None

    def why_not(self, node: onnx.NodeProto, dtype: str) -> str | None:
        """Return why a layer cannot be converted to a dtype; None when it can."""
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
        """Return the activations that a converted layer reads, by name."""
        found = {n: values[n] for n in node.input if n and n not in self.graph.constants}
        if dtype == "float32":
            return found
        if dtype != "int8":
            return {name: round_to(value, dtype) for name, value in found.items()}
        assert self.ranges is not None
        scales = self.ranges.channel_scales.get(node.name)
        if scales is not None and self.scheme.per_channel:
            [(name, value)] = found.items()
            factors = scales.along(value.ndim)
            rounded = quantised_activation(value / factors, scales.low, scales.high, self.scheme)
            return {name: rounded * factors}
        return {
            name: quantised_activation(value, *self.ranges.tensors[name], self.scheme)
            for name, value in found.items()
        }

    def weights(self, node: onnx.NodeProto, dtype: str) -> Arrays:
        """Return the constants that a converted layer reads, by name."""
        found = {n: self.graph.array(n) for n in node.input if n in self.graph.constants}
        if dtype == "int8":  # the bias stays int32
            found |= self._corrected_bias(node)
            weight = node.input[1]
            if weight in found:
                axis = weight_axis(node, self.scheme)
                rounding = self.ranges.roundings.get(node.name) if self.ranges else None
                scales = self.ranges.channel_scales.get(node.name) if self.ranges else None
                factors = np.ones(1, np.float32)
                if scales is not None and self.scheme.per_channel:
                    factors = weight_factors(node, scales, found[weight])
                rounded = quantised_weight(
                    found[weight] * factors,
                    axis,
                    rounding if self.scheme.per_channel else None,
                    k_axis(node) if self.scheme.exact_pairs else None,
                )
                found[weight] = rounded / factors
        elif dtype != "float32":
            weight = node.input[1]
            if weight in found:
                found[weight] = round_weight(found[weight], node, dtype)
        return found

    def _corrected_bias(self, node: onnx.NodeProto) -> Arrays:
        values = self.ranges.biases.get(node.name) if self.ranges is not None else None
        if values is None:
            return {}
        # Normalisation may have changed a Gemm's bias from one value to one for each column.
        shape = self.graph.dims(node.input[2]) or ()
        corrected = np.array(values, np.float32)
        return {node.input[2]: corrected.reshape(shape)} if math.prod(shape) == len(values) else {}


class ProbedLayer:
    """A layer that can run in several dtypes.

    Args:
        setting: The model.
        node: A layer for which :meth:`Setting.why_not` returns None.
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
        """Return the layer's result in ``dtype``, which may be ``"float32"``."""
        if dtype not in self._weights:
            self._weights[dtype] = self._setting.weights(self._node, dtype)
        activations = self._setting.activations(self._node, values, dtype)
        result: np.ndarray = self._session.run(None, {**activations, **self._weights[dtype]})[0]
        return round_to(result, dtype) if dtype in HALF_FLOATS else result

    def own_errors(self, values: Arrays, dtypes: Sequence[str]) -> dict[str, float]:
        """Return the relative error power of the layer's own result, by dtype."""
        exact = self(values, "float32")
        return {dtype: min(1.0, noise_ratio(self(values, dtype), exact)) for dtype in dtypes}


class Probe:
    """A layer in several dtypes, with the effect on the model's outputs.

    Args:
        setting: The model.
        node: A layer for which :meth:`Setting.why_not` returns None.
        after: Everything downstream of its result.
        example: Values of one recorded batch.
    """

    def __init__(
        self, setting: Setting, node: onnx.NodeProto, after: Downstream, example: Arrays
    ) -> None:
        self._layer = ProbedLayer(setting, node, example)
        self._after = after.compile(setting.model, setting.graph, example)

    def __call__(self, values: Arrays, dtype: str) -> Arrays:
        """Return the model outputs, by name, that change when this layer has ``dtype``."""
        return self._after(self._layer(values, dtype), values)


class Errors:
    """Output errors over batches.

    Args:
        names: Names of the outputs.
        class_scores: Whether the first output holds scores of classes.

    Attributes:
        cosine: Smallest cosine of an output.
        samples: Number of samples.
    """

    def __init__(self, names: Sequence[str], class_scores: ClassScores) -> None:
        self._names = names
        self._ratios: dict[str, list[float]] = {name: [] for name in names}
        self._agreement = Agreement() if class_scores.found else None
        self.cosine = 1.0
        self.samples = 0

    def add(self, batch: Batch, recording: Recording, at: int, changed: Arrays) -> None:
        """Add the outputs that changed on recorded batch ``at``."""
        for place, (name, want) in enumerate(zip(self._names, recording.outputs(at), strict=True)):
            got = changed.get(name, want)
            self._ratios[name].append(noise_ratio(got, want) if name in changed else 0.0)
            if name in changed:
                self.cosine = min(self.cosine, cosine(got, want))
            if place == 0 and self._agreement is not None and holds_rows_of_scores(want):
                rows = slice(0, len(want) - batch.padding)
                self._agreement.add(got[rows], want[rows])
        self.samples += batch.valid

    @property
    def error(self) -> float:
        """Relative error power of the worst output, averaged over batches.

        A batch counts 1 at most, so that outputs near zero do not dominate. Overflow counts as
        infinite.
        """
        return max(
            sum(ratio if ratio == math.inf else min(1.0, ratio) for ratio in found) / len(found)
            for found in self._ratios.values()
        )

    @property
    def disagreement(self) -> float | None:
        """Fraction of rows with another top-1; None without class scores."""
        found = self._agreement
        return 1 - found.strict if found is not None and found.rows else None


def noise_ratio(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return error power over signal power; for integers, the fraction that differs.

    An overflow gives infinity.
    """
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
    noise, power = dot(got - want, got - want), dot(want, want)
    if noise == 0:
        return 0.0
    return noise / power if power > 0 else 1.0
