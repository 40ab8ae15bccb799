"""Single layers are built at once for a GPU, timed once for each shape, until the deadline."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tvmopt.device.target import resolve_target
from tvmopt.quantize import Scheme, latency
from tvmopt.quantize.layer_builder import BuiltLayer, layer_builder

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def _matmuls(*widths: int) -> onnx.ModelProto:
    """Return a chain of matmuls on 8 rows; layer n is named ``m<n>``."""
    nodes, constants = [], []
    pairs = list(itertools.pairwise(widths))
    for n, (wide, narrow) in enumerate(pairs):
        weight = np.random.default_rng(n).standard_normal((wide, narrow)).astype(np.float32)
        constants.append(numpy_helper.from_array(weight, f"w{n}"))
        nodes.append(helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"], f"m{n}"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "chain",
        [value("x0", onnx.TensorProto.FLOAT, [8, widths[0]])],
        [value(f"x{len(pairs)}", onnx.TensorProto.FLOAT, [8, widths[-1]])],
        constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return onnx.shape_inference.infer_shapes(model)


def _unknown() -> onnx.ModelProto:
    """Return a model of an operator that does not exist."""
    model = _matmuls(64, 64)
    model.graph.node[0].op_type = "NoSuchOperator"
    return model


class _Builder:
    """Builds nothing; remembers what it is asked for. ``m1`` in float16 does not compile."""

    def __init__(self, at_once: int) -> None:
        self.at_once, self.calls = at_once, []

    def build(self, layers):
        self.calls.append([(model.graph.node[0].name, dtype) for model, dtype in layers])
        return [
            None if one == ("m1", "float16") else BuiltLayer(Path(f"{one[0]}.so"), (), True)
            for one in self.calls[-1]
        ]


class _Timer:
    def seconds(self, library, inputs, *, native):
        return float(library.stem[1:])


def _seconds(monkeypatch, builder, model, deadline=float("inf")):
    monkeypatch.setattr(latency, "layer_builder", lambda target: contextlib.nullcontext(builder))
    monkeypatch.setattr(latency, "layer_timer", lambda target: contextlib.nullcontext(_Timer()))
    jobs = [(node, dtype) for node in model.graph.node for dtype in ("float32", "float16")]
    return latency.layer_seconds(model, jobs, Scheme(), resolve_target("host", 1), deadline)


@pytest.mark.parametrize(("deadline", "timed"), [(14.0, 6), (9.0, 4), (5.0, 0)])
def test_no_layer_is_timed_where_few_of_them_would_be(monkeypatch, deadline, timed) -> None:
    """Of 6 layers that take 2 seconds each, at least half must be expected to be timed."""
    now = [0.0]

    class Slow(_Builder):
        def build(self, layers):
            now[0] += 2.0
            return super().build(layers)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(latency, "layer_builder", lambda target: contextlib.nullcontext(Slow(1)))
    monkeypatch.setattr(latency, "layer_timer", lambda target: contextlib.nullcontext(_Timer()))
    model = _matmuls(4, 6, 8, 10)
    jobs = [(node, dtype) for node in model.graph.node for dtype in ("float32", "bfloat16")]
    target = resolve_target("host", 1)
    found = latency.layer_seconds(model, jobs, Scheme(), target, deadline, least_part=0.5)
    assert len(found) == timed


def test_layers_of_one_shape_are_built_once(monkeypatch) -> None:
    builder = _Builder(3)
    found = _seconds(monkeypatch, builder, _matmuls(4, 6, 4, 6))  # m2 is as m0
    assert builder.calls == [
        [("m0", "float32"), ("m0", "float16"), ("m1", "float32")],
        [("m1", "float16")],
    ]
    assert found == {
        ("m0", "float32"): 0.0, ("m0", "float16"): 0.0, ("m1", "float32"): 1.0,
        ("m2", "float32"): 0.0, ("m2", "float16"): 0.0,
    }  # fmt: skip


def test_the_lesser_of_two_times_counts(monkeypatch) -> None:
    """A layer is timed again after all others; one that fails then keeps its time."""
    times = iter([4.0, 9.0, 5.0, 6.0, 3.0, None])

    class Timer:
        def seconds(self, library, inputs, *, native):
            if (found := next(times)) is None:
                raise RuntimeError("gone")
            return found

    monkeypatch.setattr(latency, "layer_builder", lambda _: contextlib.nullcontext(_Builder(1)))
    monkeypatch.setattr(latency, "layer_timer", lambda _: contextlib.nullcontext(Timer()))
    model = _matmuls(4, 6, 8)
    jobs = [(model.graph.node[0], d) for d in ("float32", "float16")]
    jobs += [(model.graph.node[1], d) for d in ("float32", "float16")]  # float16 does not compile
    target = resolve_target("host", 1)
    found = latency.layer_seconds(model, jobs, Scheme(), target, float("inf"))
    assert found == {("m0", "float32"): 4.0, ("m0", "float16"): 3.0, ("m1", "float32"): 5.0}


def test_after_the_deadline_no_layer_starts(monkeypatch) -> None:
    builder = _Builder(1)
    assert _seconds(monkeypatch, builder, _matmuls(4, 6), time.monotonic() - 1) == {}
    assert not builder.calls


def test_a_cpu_layer_that_does_not_compile_is_none() -> None:
    target = resolve_target("host", 1)
    with layer_builder(target) as builder:
        assert builder.at_once == 1
        layers = [_matmuls(4, 6), _unknown(), _matmuls(4, 6)]
        first, second, third = (builder.build([(model, "float32")])[0] for model in layers)
        assert second is None
        assert first is not None and third is not None and first.library != third.library
        assert first.inputs == (((8, 4), "float32"),)


@pytest.mark.slow  # tests/tracking/test_gpu_search.py times such layers
@needs_nvcc
def test_gpu_layers_are_built_at_once_in_workers() -> None:
    target = resolve_target("nvidia/nvidia-h200")
    with layer_builder(target) as builder:
        models = [_matmuls(64, 64), _unknown(), _matmuls(64, 64)]
        first, second, third = builder.build([(model, "float16") for model in models])
        assert second is None
        for built in (first, third):
            assert built is not None and not built.native
            assert built.library.read_bytes().count(b"\x7fELF") >= 2  # host code, and a cubin
        folder = first.library.parent
    assert not folder.exists()
