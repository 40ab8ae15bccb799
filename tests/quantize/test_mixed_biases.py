"""Biases that are corrected for the dtypes of all layers, from the analysis to the conversion."""

import dataclasses
import json
import time

import numpy as np
import pytest
from onnx import helper

from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.evaluate.dataset import Batch
from tvmopt.frontend import prepare
from tvmopt.frontend.layers import layer_table
from tvmopt.quantize import Quantizer, Ranges, Scheme, Sensitivity, collect_ranges
from tvmopt.quantize.analysis import Analysis
from tvmopt.quantize.bar import Bar
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.dtype_map import DtypeMap
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.joint import JointVerdict
from tvmopt.quantize.layer_choices import LayerChoice
from tvmopt.quantize.layerwise import fit_layers
from tvmopt.quantize.map_measurement import MapMeasurement, emulated
from tvmopt.quantize.mixed_biases import MixedBiases, with_biases
from tvmopt.quantize.probe import Setting
from tvmopt.stages.layer_dtypes import with_biases_of_map
from tvmopt.stages.sensitivity import SENSITIVITY_FILE, _write_table

DTYPES = {"first": "int8", "second": "bfloat16", "third": "int8", "last": "float32"}


@pytest.fixture(scope="module")
def network(make_model):
    """Return a chain of convolutions whose integer weights shift means, and samples."""
    rng = np.random.default_rng(0)
    nodes, constants, x = [], {}, "x"
    for name, (inputs, outputs) in zip(DTYPES, ((3, 8), (8, 8), (8, 8), (8, 4)), strict=True):
        constants[f"{name}.w"] = rng.uniform(0.001, 0.02, (outputs, inputs, 3, 3)).astype("float32")
        constants[f"{name}.w"][:, 0, 1, 1] = rng.uniform(1, 2, outputs)  # small ones round badly
        constants[f"{name}.b"] = rng.uniform(-0.1, 0.3, outputs).astype(np.float32)
        nodes.append(helper.make_node("Conv", [x, f"{name}.w", f"{name}.b"], [f"{name}.c"], name))
        x = f"{name}.r" if name != "last" else "y"
        nodes.append(helper.make_node("Relu", [f"{name}.c"], [x], f"{name}.relu"))
    tensors = {"x": ("float32", (1, 3, 16, 16))}, {"y": ("float32", (1, 4, 8, 8))}
    model = prepare(make_model(nodes, *tensors, constants), {}).model
    draws = [{"x": rng.uniform(0, 1, (1, 3, 16, 16)).astype(np.float32)} for _ in range(20)]
    return model, draws[:12], draws[12:]


@pytest.fixture(scope="module")
def fitted(network):
    model, batches, _ = network
    return fit_layers(model, collect_ranges(model, batches), batches)


def _error(model, ranges, batches, tensor=None):
    """Return error power and mean error by channel of the model in ``DTYPES``."""
    exact = new_session(model)
    mixed = new_session(emulated(model, Quantizer(model, ranges, Scheme()), DTYPES))
    errors = [mixed.run(None, b)[0] - exact.run(None, b)[0] for b in batches]
    return float(np.mean(np.square(errors))), np.mean(errors, axis=(0, 1, 3, 4))


def test_the_error_is_less_than_with_biases_for_int8_alone(network, fitted):
    model, batches, others = network
    mixed = MixedBiases(model, fitted, batches)(DTYPES)
    assert set(mixed.biases) == {"first", "third"}
    assert set(mixed.half_biases) == {"second"}
    assert mixed.roundings == fitted.roundings
    before, after = (_error(model, one, others)[0] for one in (fitted, mixed))
    assert after < before
    assert (
        np.abs(_error(model, mixed, batches)[1]).max()
        < np.abs(_error(model, fitted, batches)[1]).max()
    )


def test_layers_in_one_dtype_have_the_biases_of_the_fit(network, fitted):
    """With all layers in int8, nothing is left to correct."""
    model, batches, _ = network
    again = MixedBiases(model, fitted, batches)(dict.fromkeys(DTYPES, "int8"))
    assert again.half_biases == {}
    for name, values in fitted.biases.items():
        np.testing.assert_allclose(again.biases[name], values, atol=1e-5)


def test_a_float32_layer_keeps_its_bias(network, fitted):
    model, batches, _ = network
    mixed = MixedBiases(model, fitted, batches)(DTYPES)
    quantized = Graph(Quantizer(model, mixed, Scheme())(["second", "last"]).graph)
    plain = Graph(model.graph)
    by_name = {node.name: node for node in quantized.nodes}
    last, second = (quantized.array(by_name[name].input[2]) for name in ("last", "second"))
    assert last.tobytes() == plain.array("last.b").tobytes()
    np.testing.assert_array_equal(second, np.array(mixed.half_biases["second"], np.float32))
    assert Ranges.from_dict(json.loads(json.dumps(mixed.to_dict()))) == mixed


def test_biases_of_another_model_are_an_error(network, fitted):
    wrong = dataclasses.replace(fitted, half_biases={"second": (0.0,)})
    with pytest.raises(ConfigError, match="'second' has no constant bias of 1 values"):
        Quantizer(network[0], wrong, Scheme())


def test_no_biases_leave_the_calibration_as_it_is(fitted):
    assert with_biases(fitted, {}, DTYPES) is fitted


def test_maps_are_measured_with_their_biases_and_the_conversion_reads_them(
    network, fitted, tmp_path
):
    model, batches, _ = network
    judged = []

    def judge(proto, *args, **kwargs):
        judged.append(proto)
        return JointVerdict(Accuracy("fidelity", 1.0, 1.0, None, 1.0, 0.0, 12), len(judged) > 1)

    setting = Setting(model, Graph(model.graph), Scheme(), fitted)
    samples = [Batch(inputs, None, 1) for inputs in batches]
    judge.by_r2 = False
    analysis = Analysis(setting, [], {}, ("int8", "bfloat16"), samples, Bar(0.01), judge, None)
    choices = [
        LayerChoice(i, name, ("float32", "int8", "bfloat16"), (4.0, 1.0, 2.0), (0.0, 0.1, 0.01))
        for i, name in enumerate(DTYPES)
    ]
    measure = MapMeasurement(analysis, choices, {}, {})
    assert measure((1, 2, 1, 2), time.monotonic()).biases == {}, "no time is left"
    assert measure((1, 1, 1, 1), time.monotonic() + 60).biases == {}
    found = measure((1, 2, 1, 2), time.monotonic() + 60)
    want = MixedBiases(model, fitted, batches)({**DTYPES, "last": "bfloat16"})
    assert found.biases == {**want.biases, **want.half_biases}
    by_name = {**DTYPES, "last": "bfloat16"}
    expected = emulated(model, Quantizer(model, want, Scheme()), by_name)
    assert judged[-1].SerializeToString() == expected.SerializeToString()

    result = Sensitivity(("int8", "bfloat16"), (), (), 12, 1.0, {}, (), (found,))
    (tmp_path / SENSITIVITY_FILE).write_text(json.dumps(result.to_dict()))
    _write_table(tmp_path / "maps.csv", DtypeMap, result.dtype_maps)
    assert "biases" not in (tmp_path / "maps.csv").read_text()
    layers = layer_table(model)
    read = with_biases_of_map(fitted, layers, {1, 3}, tmp_path, 0)
    assert read == want
    assert set(with_biases_of_map(fitted, layers, {1}, tmp_path, 0).half_biases) == {"second"}
