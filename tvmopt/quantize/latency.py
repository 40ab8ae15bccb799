"""Latency of single layers, compiled for the target in each dtype.

Layers of equal shapes are built once. They use default schedules, without tuning and without
neighbouring layers: good for comparing dtypes, not for adding up. Each is timed twice, before and
after all others, and the lesser time counts: neighbours of a virtual machine take it to half of its
speed for some tenths of a second, in which all samples of a layer would fall.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx

from tvmopt.device.target import TargetSpec, set_thread_environment
from tvmopt.quantize.downstream import part_of, value_info
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.layer_builder import LAYER_ERRORS, BuiltLayer, LayerBuilder, layer_builder
from tvmopt.quantize.layer_timer import LayerTimer, layer_timer
from tvmopt.quantize.normalise import at_least_opset_13
from tvmopt.quantize.quantizer import quantize_model
from tvmopt.quantize.ranges import Ranges
from tvmopt.quantize.scheme import Scheme


def layer_seconds(
    model: onnx.ModelProto,
    jobs: Iterable[tuple[onnx.NodeProto, str]],
    scheme: Scheme,
    target: TargetSpec,
    deadline: float,
    least_part: float = 0.0,
) -> dict[tuple[str, str], float]:
    """Time single layers until ``deadline`` (of ``time.monotonic()``).

    Args:
        model: A prepared float32 model with static shapes.
        jobs: Layers and dtypes, most important first.
        scheme: Quantization scheme of int8.
        target: CPU or GPU of this machine, to compile for.
        deadline: No layer starts after it, nor one that would end after it if it took as long as
            the slowest before, nor its second measurement. On a GPU all cores start a layer each.
        least_part: Part of the layers that must be expected to be timed by the deadline, after the
            first ones; else none is.

    Returns:
        Median seconds by node name and dtype, the lesser of two. Layers that do not compile, or
        that time did not allow, are missing.
    """
    graph = Graph(model.graph)
    set_thread_environment(target.threads)
    keys: dict[tuple[str, str], tuple[object, ...]] = {}
    distinct: dict[tuple[object, ...], tuple[onnx.NodeProto, str]] = {}
    for node, dtype in jobs:
        key = keys[node.name, dtype] = (dtype, *_shape_of(graph, node))
        distinct.setdefault(key, (node, dtype))
    waiting = [*distinct.items()]
    built: dict[tuple[object, ...], BuiltLayer] = {}
    known: dict[tuple[object, ...], float] = {}
    with layer_builder(target) as builder, layer_timer(target) as timer:
        longest = 0.0  # a block of layers that would end too late is not begun
        while waiting and (start := time.monotonic()) + longest < deadline:
            some, waiting = waiting[: builder.at_once], waiting[builder.at_once :]
            new = _built(model, graph, some, scheme, builder)
            built |= new
            known |= _timed(new, timer)
            is_first, took = not longest, time.monotonic() - start
            longest = max(longest, took)
            wanted_s = (least_part * len(distinct) / len(some) - 1) * took
            if is_first and time.monotonic() + wanted_s > deadline:
                return {}
        for key in [*known]:
            if time.monotonic() < deadline:
                again = _timed({key: built[key]}, timer)
                known[key] = min(known[key], again.get(key, known[key]))
    return {layer: known[key] for layer, key in keys.items() if key in known}


_Keyed: TypeAlias = tuple[tuple[object, ...], tuple[onnx.NodeProto, str]]


def _built(
    model: onnx.ModelProto,
    graph: Graph,
    layers: Sequence[_Keyed],
    scheme: Scheme,
    builder: LayerBuilder,
) -> dict[tuple[object, ...], BuiltLayer]:
    """Return the libraries by key; layers that do not compile are missing."""
    alone = {}
    for key, (node, dtype) in layers:
        with contextlib.suppress(*LAYER_ERRORS):
            alone[key] = _alone(model, graph, node, dtype, scheme), dtype
    libraries = builder.build([*alone.values()]) if alone else []
    return {key: one for key, one in zip(alone, libraries, strict=True) if one is not None}


def _timed(
    layers: Mapping[tuple[object, ...], BuiltLayer], timer: LayerTimer
) -> dict[tuple[object, ...], float]:
    """Return the median seconds by key; layers that do not run are missing."""
    found = {}
    for key, one in layers.items():
        with contextlib.suppress(*LAYER_ERRORS):
            found[key] = timer.seconds(one.library, one.inputs, native=one.native)
    return found


def _shape_of(graph: Graph, node: onnx.NodeProto) -> tuple[object, ...]:
    attrs = tuple(a.SerializeToString() for a in sorted(node.attribute, key=lambda a: a.name))
    constant = tuple(name in graph.constants for name in node.input)
    return (node.op_type, attrs, constant, *(graph.dims(name) for name in node.input))


def _alone(
    model: onnx.ModelProto, graph: Graph, node: onnx.NodeProto, dtype: str, scheme: Scheme
) -> onnx.ModelProto:
    """Return a model of one layer on inputs in [-1, 1], quantised for int8."""
    inputs = []
    for name in dict.fromkeys(node.input):
        if name and name not in graph.constants:
            dims = graph.dims(name)
            if dims is None:
                raise ValueError(f"shape of {name!r} is unknown")
            inputs.append(value_info(name, np.broadcast_to(np.float32(0), dims)))
    constants = [graph.constants[name] for name in node.input if name in graph.constants]
    alone = part_of(model, [node], inputs, [node.output[0]], constants)
    alone = onnx.shape_inference.infer_shapes(alone)
    if dtype != "int8":
        return alone
    tensors = dict.fromkeys([*node.input, *node.output], (-1.0, 1.0))
    ranges = Ranges("minmax", None, 1, tensors)
    quantised = quantize_model(at_least_opset_13(alone), ranges, scheme)
    if all(one.op_type != "QuantizeLinear" for one in quantised.graph.node):
        raise ValueError("the layer is not quantised")
    return quantised
