"""Calibration: ranges of activations from ONNX Runtime's calibrators, for all skip sets."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvmopt.errors import ConfigError, ModelError
from tvmopt.frontend.library_errors import onnxruntime_errors
from tvmopt.quantize.channel_scales import ChannelScales
from tvmopt.quantize.checks import check_float
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.normalise import normalise
from tvmopt.quantize.rounding import Rounding
from tvmopt.quantize.scheme import Scheme
from tvmopt.quantize.select import quantised_tensors

Progress = Callable[[int, int, str], None]
Inputs = Mapping[str, np.ndarray]

_PERCENTILE_BINS = 8192
# ONNX Runtime's search runs in Python, in time quadratic in the bins. Its default (128, equal to
# the number of levels) leaves no choice.
_ENTROPY_BINS = 512
_ENTROPY_LEVELS = 128
_BYTES_AT_ONCE = 512 * 2**20
_USABLE_SPAN = 1e30


@dataclasses.dataclass(frozen=True)
class Ranges:
    """Smallest and largest value to represent, by tensor.

    Attributes:
        method: Calibration method of :class:`~tvmopt.quantize.scheme.Scheme`.
        percentile: Percentile of that method; None for other methods.
        batches: Number of calibration batches.
        tensors: ``(low, high)`` by tensor name, in topological order.
        biases: Corrected bias of each layer, one value for each output channel, by node name;
            without bias correction, empty. See :mod:`tvmopt.quantize.bias_correction`.
        channel_scales: Scales of the channels of the inputs of depthwise convolutions, by node
            name; without them, empty.
        roundings: How the weights of layers are rounded, by node name; other weights are rounded
            to nearest.
        half_biases: Corrected bias of each layer in a 16-bit float, beside layers in int8, by node
            name, see :mod:`tvmopt.quantize.mixed_biases`. A layer in int8 does not use it.
    """

    method: str
    percentile: float | None
    batches: int
    tensors: dict[str, tuple[float, float]]
    biases: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    channel_scales: dict[str, ChannelScales] = dataclasses.field(default_factory=dict)
    roundings: dict[str, Rounding] = dataclasses.field(default_factory=dict)
    half_biases: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)

    def usable(self, name: str) -> bool:
        """Return whether a tensor has a finite range that 8 bits can represent."""
        low, high = self.tensors.get(name, (math.nan, math.nan))
        return math.isfinite(low) and math.isfinite(high) and high - low < _USABLE_SPAN

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary for :meth:`from_dict`; None is non-finite."""
        tensors = {
            name: [value if math.isfinite(value) else None for value in pair]
            for name, pair in self.tensors.items()
        }
        return {
            "method": self.method,
            "percentile": self.percentile,
            "batches": self.batches,
            "tensors": tensors,
            "biases": {name: list(values) for name, values in self.biases.items()},
            "channel_scales": {name: one.to_dict() for name, one in self.channel_scales.items()},
            "roundings": {name: one.to_dict() for name, one in self.roundings.items()},
            "half_biases": {name: list(values) for name, values in self.half_biases.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ranges:
        """Rebuild ranges from :meth:`to_dict`."""
        tensors = {
            name: (_number(low), _number(high)) for name, (low, high) in data["tensors"].items()
        }
        biases = {name: tuple(values) for name, values in data["biases"].items()}
        scales = {name: ChannelScales.from_dict(v) for name, v in data["channel_scales"].items()}
        roundings = {name: Rounding.from_dict(v) for name, v in data.get("roundings", {}).items()}
        halves = {name: tuple(values) for name, values in data.get("half_biases", {}).items()}
        method, percentile, batches = data["method"], data["percentile"], data["batches"]
        return cls(method, percentile, batches, tensors, biases, scales, roundings, halves)


def collect_ranges(
    model: onnx.ModelProto,
    batches: Iterable[Inputs],
    scheme: Scheme | None = None,
    progress: Progress | None = None,
) -> Ranges:
    """Run the float model on calibration data and choose the range of every activation.

    Memory use is bounded: one batch is held at a time. The histogram methods read the data twice,
    first for the extremes, so that histograms never need to grow.

    Args:
        model: A prepared float32 model, ``Prepared.model``.
        batches: Inputs by name, one mapping per call of the model. The histogram methods iterate
            twice.
        scheme: Scheme with the calibration method; by default :class:`Scheme`'s.
        progress: Called with batches done, their number (0: unknown) and a description.

    Raises:
        ConfigError: When the model is quantized or not float32, or there is no data.
        ModelError: When ONNX Runtime cannot run the model on the data.
    """
    scheme = scheme or Scheme()
    check_float(model)
    if scheme.method != "minmax" and iter(batches) is batches:
        batches = list(batches)
    prepared = normalise(model)
    # Matmuls of two activations may be quantized later; their ranges cost nothing extra.
    wanted = quantised_tensors(
        Graph(prepared.graph), dataclasses.replace(scheme, activation_matmul=True)
    )
    report = _Report(progress, len(batches) if isinstance(batches, Sized) else 0)
    tensors, count = _extremes(prepared, wanted, batches, report)
    if scheme.method != "minmax" and wanted:
        tensors = _from_histograms(prepared, tensors, batches, scheme, report)
    percentile = scheme.percentile if scheme.method == "percentile" else None
    return Ranges(scheme.method, percentile, count, tensors)


def _extremes(
    model: onnx.ModelProto, wanted: list[str], batches: Iterable[Inputs], report: _Report
) -> tuple[dict[str, tuple[float, float]], int]:
    """Return extremes from ONNX Runtime's MinMaxCalibrater, and the number of batches."""
    from tvmopt.quantize.min_max import MinMax, OneBatch

    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        path = Path(folder) / "float.onnx"
        onnx.save_model(model, str(path))
        with _quiet():
            calibrater = MinMax(path, wanted, str(Path(folder) / "augmented.onnx"))
            calibrater.augment_graph()
            calibrater.create_inference_session()
        for inputs in report.count(batches, "smallest and largest values"):
            with _explained():
                calibrater.collect_data(OneBatch(inputs))
    if not report.done:
        raise ConfigError(
            "calibration needs at least one batch of data, but got none; give data with a sample"
        )
    found = calibrater.calibrate_tensors_range if wanted else {}
    tensors = {
        name: (float(np.min(found[name].lowest)), float(np.max(found[name].highest)))
        for name in wanted
    }
    return tensors, report.done


def _from_histograms(
    model: onnx.ModelProto,
    extremes: dict[str, tuple[float, float]],
    batches: Iterable[Inputs],
    scheme: Scheme,
    report: _Report,
) -> dict[str, tuple[float, float]]:
    """Return ranges that ONNX Runtime's HistogramCollector selects from given histograms.

    Its own collection keeps the outputs of all batches in memory. It also grows a histogram by the
    ratio of a later batch's width to the first one's, without bound when the first is near zero.
    """
    from onnxruntime.quantization.calibrate import HistogramCollector

    bins = _ENTROPY_BINS if scheme.method == "entropy" else _PERCENTILE_BINS
    collector = HistogramCollector(
        method=scheme.method,
        symmetric=False,
        num_bins=bins,
        num_quantized_bins=_ENTROPY_LEVELS,
        percentile=scheme.percentile,
        scenario="same",
    )
    names = [n for n, (low, high) in extremes.items() if 0 < high - low < _USABLE_SPAN]
    for name in names:
        low, high = extremes[name]
        # Slightly wider, so that rounding leaves no value outside.
        limit = np.float32(max(abs(low), abs(high)) * (1 + 1e-5))
        edges = np.linspace(-limit, limit, bins + 1, dtype=np.float32)
        counts = np.zeros(bins, np.int64)
        collector.histogram_dict[name] = (
            counts, edges, np.float32(low), np.float32(high), limit
        )  # fmt: skip
    run = GroupedOutputs(model, names)
    for inputs in report.count(batches, "histograms"):
        with _explained():
            for name, value in run(inputs):
                counts, edges, *_ = collector.histogram_dict[name]
                finite = value.ravel()
                counts += np.histogram(finite, bins, range=(float(edges[0]), float(edges[-1])))[0]
    if not names:
        return extremes
    with _quiet():
        chosen = collector.compute_collection_result()
    return {
        name: (float(chosen[name][0]), float(chosen[name][1])) if name in chosen else pair
        for name, pair in extremes.items()
    }


class GroupedOutputs:
    """A float model with intermediate tensors as outputs, in groups of bounded size.

    Args:
        model: The model.
        names: The tensors.
    """

    def __init__(self, model: onnx.ModelProto, names: list[str]) -> None:
        graph = Graph(model.graph)
        augmented = onnx.ModelProto()
        augmented.CopyFrom(model)
        self._inputs = {name for name in names if name in graph.inputs}
        inner = [name for name in names if name not in self._inputs]
        known = {output.name for output in augmented.graph.output}
        augmented.graph.output.extend(onnx.ValueInfoProto(name=n) for n in inner if n not in known)
        self._groups: list[list[str]] = []
        room = 0
        for name in inner:
            size = 4 * math.prod(graph.dims(name) or (_BYTES_AT_ONCE,))
            if size > room:
                self._groups.append([])
                room = _BYTES_AT_ONCE
            self._groups[-1].append(name)
            room -= size
        self._session = new_session(augmented)

    def __call__(self, inputs: Inputs) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and the value of each tensor."""
        yield from ((name, inputs[name]) for name in self._inputs)
        for group in self._groups:
            yield from zip(group, self._session.run(group, dict(inputs)), strict=True)


class _Report:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total = progress, total
        self.done = 0

    def count(self, batches: Iterable[Inputs], what: str) -> Iterator[Inputs]:
        self.done = 0
        for inputs in batches:
            yield inputs
            self.done += 1
            if self._progress is not None:
                self._progress(self.done, self._total, f"calibrate: {what}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except onnxruntime_errors() as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"the float model must run on the calibration data, but ONNX Runtime says: {reason}"
            "; give data that it takes"
        ) from error


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
