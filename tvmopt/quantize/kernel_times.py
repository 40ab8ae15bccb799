"""Predict the time of each layer with the cost model of the kernels, where the target is a CPU.

Each layer is predicted alone, with the kernel that the build would choose. In a roofline that
memory bounds, two 16-bit floats are equal; as kernels they differ by a factor of 4 where the CPU
has dot products of one and converts the other to float32.

Layers that the roofline calls the heaviest come first. Those that time does not reach keep the
roofline's time, times the median ratio of the prediction to it.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

import onnx
from tvm import relax

from tvmopt import forked
from tvmopt.device.cpu import CpuArch
from tvmopt.device.target import TargetSpec
from tvmopt.frontend import import_onnx
from tvmopt.kernels.graph_cost import modelled_cycles
from tvmopt.quantize.layer_builder import LAYER_ERRORS
from tvmopt.quantize.layer_times import FLOAT, LayerTimes
from tvmopt.quantize.roofline import HERTZ
from tvmopt.transform.anchors import anchors
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower
from tvmopt.transform.precision.anchor_call import TYPED_ANCHORS
from tvmopt.transform.single_layer import layer_key, layout_of_layers, single_layer

_INT8_OPERANDS = ("uint8", "int8")  # activations and weights


def kernel_times(
    model: onnx.ModelProto,
    dtypes: Sequence[str],
    roofline: LayerTimes,
    target: TargetSpec,
    deadline: float,
) -> LayerTimes:
    """Return predicted times of the layers of a model.

    Args:
        model: A prepared float32 model with static shapes.
        dtypes: Dtypes to predict beside float32.
        roofline: Times that stay for a GPU, and scaled ones for layers that are not predicted.
        target: The target.
        deadline: Value of ``time.monotonic()`` after which no layer is begun.
    """
    arch = target.arch()
    if not isinstance(arch, CpuArch):
        return roofline
    calls = _layer_calls(model, layout_of_layers(arch))
    keys = {i: layer_key(call) for i, call in calls.items() if (i, FLOAT) in roofline.seconds}
    work: defaultdict[Hashable, float] = defaultdict(float)
    for index, key in keys.items():
        work[key] += roofline.seconds[index, FLOAT]
    heaviest_first = sorted(keys.items(), key=lambda pair: -work[pair[1]])
    distinct = {key: calls[index] for index, key in heaviest_first}
    rows = _predicted([*distinct.values()], (FLOAT, *dtypes), target, deadline)
    by_key = dict(zip(distinct, rows, strict=True))
    predicted = {
        (index, dtype): seconds
        for index, key in keys.items()
        for dtype, seconds in by_key[key].items()
    }
    bandwidth = arch.l3_bandwidth * arch.cores * HERTZ
    times = {**_scaled(roofline.seconds, predicted), **predicted}
    return LayerTimes(times, roofline.compute_bound, bandwidth)


def _scaled(
    roofline: Mapping[tuple[int, str], float], predicted: Mapping[tuple[int, str], float]
) -> dict[tuple[int, str], float]:
    """Return the roofline's seconds, times the median ratio of a prediction to it in the dtype."""
    ratios: dict[str, list[float]] = {}
    for (index, dtype), seconds in predicted.items():
        if roofline[index, dtype] > 0:
            ratios.setdefault(dtype, []).append(seconds / roofline[index, dtype])
    scales = {dtype: statistics.median(found) for dtype, found in ratios.items()}
    return {key: seconds * scales.get(key[1], 1.0) for key, seconds in roofline.items()}


def _layer_calls(model: onnx.ModelProto, layout: str) -> dict[int, relax.Call]:
    """Return the call of each layer by index; a model that is not imported has none."""
    try:
        mod = convert_module(import_onnx(model), layout=layout).mod
    except LAYER_ERRORS:  # the conversion says why; the roofline predicts meanwhile
        return {}
    return {anchor.index: anchor.call for anchor in anchors(mod) if anchor.op in TYPED_ANCHORS}


def _predicted(
    calls: Sequence[relax.Call], dtypes: Sequence[str], target: TargetSpec, deadline: float
) -> list[dict[str, float]]:
    """Return the seconds by dtype of each layer; an empty table for one without a prediction."""

    def row(call: relax.Call) -> dict[str, float]:
        with contextlib.suppress(*LAYER_ERRORS):  # a layer without a kernel in some dtype
            if time.monotonic() < deadline:
                return {dtype: _seconds(call, dtype, target) for dtype in dtypes}
        return {}

    return forked.compute_all(row, calls)


def _seconds(call: relax.Call, dtype: str, target: TargetSpec) -> float:
    """Return the predicted seconds of one layer in one dtype."""
    operands = _INT8_OPERANDS if dtype == "int8" else (dtype, dtype)
    return layer_cycles(call, operands, target) / HERTZ


def layer_cycles(call: relax.Call, operands: tuple[str, str], target: TargetSpec) -> float:
    """Return the predicted cycles of one layer alone.

    Args:
        call: As of :func:`~tvmopt.transform.single_layer.single_layer`.
        operands: Dtypes of data and weight.
        target: The target.
    """
    mod = lower(single_layer(call, operands), target.to_tvm())
    return modelled_cycles(mod, target.arch())
