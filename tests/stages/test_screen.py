"""The screen stage takes the fastest map of dtypes that keeps the accuracy in emulation."""

from __future__ import annotations

import csv
import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tvmopt.config import CalibrateConfig, ConvertConfig, ScreenConfig
from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.frontend import layer_table
from tvmopt.quantize import LayerCost, Sensitivity
from tvmopt.quantize.dtype_map import DtypeMap
from tvmopt.stages import screen as stage
from tvmopt.stages.calibrate import calibrate, read_ranges
from tvmopt.stages.emulated_accuracy import EmulatedAccuracy, is_refused
from tvmopt.stages.layer_dtypes import dtypes_of_map
from tvmopt.stages.screen import screen

TARGET = resolve_target("host", 1).to_dict()
CONVERT = ConvertConfig("", TARGET, dtype="auto")
CONFIG = ScreenConfig(CONVERT.to_dict(), least=-99, max_accuracy_drop=0.01)


def _map(seconds, loss, dtypes):
    return DtypeMap(
        tuple(range(len(dtypes))), dtypes, seconds, loss, 1.0, None, 0.0, 9, holds=True
    )  # fmt: skip


# In order: eight with int8 layers, each of half of the loss of the one before, and float32.
MAPS = [_map(1.0 + n, 0.1 * 0.5**n, ("int8",)) for n in range(8)] + [_map(9.0, 0.0, ())]
LAST = len(MAPS) - 1


def _write(folder, maps, costs=()):
    folder.mkdir(exist_ok=True)
    found = Sensitivity(("int8", "bfloat16"), tuple(costs), (), 9, 1.0, {}, (), tuple(maps))
    (folder / "sensitivity.json").write_text(json.dumps(found.to_dict()))
    return found


def _rows(folder):
    with (folder / "screen.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def screened(monkeypatch, tmp_path):
    """Screen maps that have given drops (None: the metric fails), each after a second."""

    def run(drops, config=CONFIG):
        _write(tmp_path / "sensitive", MAPS)
        clock = SimpleNamespace(now=0.0)
        asked = []

        def measure(one, time_limit_s):
            clock.now += 1.0
            asked.append((MAPS.index(one), time_limit_s))
            drop = drops[MAPS.index(one)]
            return None if drop is None else Accuracy("top1", 1.0 - drop, 1.0, None, 1.0, 0.0, 100)

        monkeypatch.setattr(stage, "EmulatedAccuracy", lambda *_: measure)
        monkeypatch.setattr(stage.time, "perf_counter", lambda: clock.now)
        result = screen(config, tmp_path / "m.onnx", tmp_path / "sensitive", tmp_path, print)
        return result, asked

    return run


@pytest.mark.parametrize("first", range(LAST + 1))
@pytest.mark.parametrize("holds", range(LAST + 1))
def test_the_fastest_map_that_keeps_the_accuracy_is_taken(screened, tmp_path, first, holds):
    """Maps from ``holds`` on keep it; float32 does so without a measurement."""
    drops = [0.01 if number >= holds else 0.02 for number in range(LAST)]
    result, asked = screened(drops, dataclasses.replace(CONFIG, first=first, least=first))
    assert result.metrics["dtype_map"] == max(first, holds)
    measured = [at for at, _ in asked]
    assert measured[:1] == [first][: LAST - first]
    assert len(set(measured)) == len(measured) <= 6
    assert [int(row["map"]) for row in _rows(tmp_path)] == sorted(measured)
    assert result.metrics["screened_maps"] == len(measured)


@pytest.mark.parametrize("holds", range(-3, 3))
def test_faster_maps_are_measured_where_the_chosen_one_keeps_the_accuracy(
    screened, monkeypatch, holds
):
    guesses = [
        dataclasses.replace(_map(0.5 + 0.1 * n, 1.0, ("int8",)), holds=False, is_guess=True)
        for n in range(3)
    ]
    maps = [*guesses, *MAPS]  # of numbers from -3 on
    monkeypatch.setattr("tests.stages.test_screen.MAPS", maps)
    drops = [0.0 if number >= holds else 0.02 for number in range(-3, LAST)]
    result, asked = screened(drops)
    measured = [at - 3 for at, _ in asked]
    assert result.metrics["dtype_map"] == holds
    assert measured[0] == 0 and len(measured) <= 4
    result, asked = screened(drops, dataclasses.replace(CONFIG, least=-1))
    assert result.metrics["dtype_map"] == max(-1, holds)
    assert all(at - 3 >= -1 for at, _ in asked)


@pytest.mark.parametrize(
    ("drop", "second"), [(0.011, 1), (0.03, 4), (0.2, 7)], ids=["near", "far", "broken"]
)
def test_the_drop_says_which_map_is_measured_next(screened, monkeypatch, drop, second):
    """Maps of 1.0, 0.8, 0.64 and so on of the loss; half of it is needed where 0.03 are lost."""
    maps = [_map(1.0 + n, 0.1 * 0.8**n, ("int8",)) for n in range(10)] + [_map(99.0, 0.0, ())]
    monkeypatch.setattr("tests.stages.test_screen.MAPS", maps)
    _, asked = screened([drop, *[0.0] * 9])
    assert [at for at, _ in asked][:2] == [0, second]


@pytest.mark.parametrize(("least", "number"), [(99, LAST), (LAST, LAST), (-99, 2)])
def test_float32_is_not_measured(screened, least, number):
    """Where it is the first, as where the analysis chose it, faster maps are."""
    drops = [0.02, 0.02, *[0.0] * 6]
    result, asked = screened(drops, dataclasses.replace(CONFIG, first=99, least=least))
    assert result.metrics["dtype_map"] == number
    assert LAST not in [at for at, _ in asked]


def test_the_words_say_what_was_measured_and_what_is_taken(screened):
    drops = [0.02, None, 0.02, 0.02, 0.02, -0.01, 0.0, 0.0]
    result, _ = screened(drops)
    assert result.changed == [
        "map 0 (1 layers in int8): drop +0.0200 on 100 samples",
        "map 1 (1 layers in int8): the metric fails on its outputs",
        "map 4 (1 layers in int8): drop +0.0200 on 100 samples",
        "map 5 (1 layers in int8): drop -0.0100 on 100 samples",
        "map 5 is taken: the fastest found that is likely to lose at most 0.01",
    ]
    result, _ = screened([0.02] * LAST)
    assert result.changed[-1] == "map 8 is taken: float32"


@pytest.mark.parametrize(
    ("fidelity", "drops", "number", "likely"),
    [
        ("R2", [0.0099, 0.0091, 0.0079], 2, True),  # a standard error is 0.002
        ("R2", [0.0099, 0.0089, 0.0079], 1, True),  # half of one, for two thirds of the time
        ("", [0.0099, 0.0081, 0.0079], 0, True),  # rows that were counted
        ("R2", [0.02, 0.0099, 0.0098, 0.0097, 0.0096, 0.0095, 0.0094, 0.0093], 7, False),
    ],
)
def test_fidelity_keeps_a_standard_error_from_the_limit(
    monkeypatch, tmp_path, fidelity, drops, number, likely
):
    """Where no map does, the one with the least drop within the limit is taken, not float32."""
    _write(tmp_path / "sensitive", MAPS)
    drops = [*drops, *[0.0] * (len(MAPS) - len(drops))]

    def measure(one, time_limit_s):
        drop = drops[MAPS.index(one)]
        high = drop + 2 * 1.96e-3
        return Accuracy("fidelity", 1 - drop, 1.0, None, 1.0, 0.0, 100, True, 0.0, high, fidelity)

    monkeypatch.setattr(stage, "EmulatedAccuracy", lambda *_: measure)
    config = dataclasses.replace(CONFIG, first=0)
    result = screen(config, tmp_path / "m.onnx", tmp_path / "sensitive", tmp_path, print)
    assert result.metrics["dtype_map"] == number
    assert ("that is likely" in result.changed[-1]) == likely


@pytest.mark.parametrize(
    ("drop", "seconds", "number"),
    [(0.009, 0.9, 0), (0.009, 0.91, 1), (0.0091, 0.5, 1), (None, 0.5, 1)],
)
def test_a_doubtful_map_is_taken_where_it_saves_a_tenth_of_the_time(drop, seconds, number):
    """Map 1 takes a second; a standard error is 0.002."""

    def measured(drop):
        high = drop + 2 * 1.96e-3
        return Accuracy("fidelity", 1 - drop, 1.0, None, 1.0, 0.0, 50, True, 0.0, high, "R2")

    maps = {0: _map(seconds, 0.2, ("int8",)), 1: _map(1.0, 0.1, ("int8",))}
    found = {0: None if drop is None else measured(drop), 1: measured(0.004)}
    assert stage._worth_a_doubt(found, maps, 1, 0.01) == number


@pytest.mark.parametrize(
    ("limit_s", "holds", "number"),
    [(0.5, 9, 1), (1.5, 9, 4), (3.5, 2, 2), (2.5, 3, 4), (0.0, 3, 3), (9.0, 3, 3)],
)
def test_time_ends_after_a_map(screened, limit_s, holds, number):
    """One is measured in any case. The next one is taken, or the fastest that was measured to hold.

    float32 is not, although it is known to hold.
    """
    drops = [0.0 if number >= holds else 0.02 for number in range(LAST)]
    result, asked = screened(drops, dataclasses.replace(CONFIG, time_limit_s=limit_s))
    assert result.metrics["dtype_map"] == number
    limits = [seconds for _, seconds in asked]
    assert limits[:1] == [0.3 * limit_s]
    assert limits[1:] == [limit_s - n if limit_s else 0.0 for n in range(1, len(asked))]
    assert ("not measured, for time" in result.changed[-1]) == (holds == 9)


def test_a_map_that_was_measured_on_fewer_samples_than_the_first_counts_as_unmeasured(
    monkeypatch, tmp_path
):
    """Time ended: 4 samples of 100 without a changed class show nothing."""
    _write(tmp_path / "sensitive", MAPS)
    samples = iter([100, 4])

    def measure(one, time_limit_s):
        drop = 0.02 if one == MAPS[0] else 0.0
        return Accuracy("top1", 1.0 - drop, 1.0, None, 1.0, 0.0, next(samples))

    monkeypatch.setattr(stage, "EmulatedAccuracy", lambda *_: measure)
    result = screen(CONFIG, tmp_path / "m.onnx", tmp_path / "sensitive", tmp_path, print)
    assert result.metrics["screened_maps"] == 1
    assert result.changed[-1] == "map 1 is taken: not measured, for time"


@pytest.fixture(scope="module")
def network(make_model):
    """Two matrices, and class scores."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((16, 16)).astype(np.float32)
    second = rng.standard_normal((16, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "w1"], ["c"], name="second"),
        helper.make_node("Softmax", ["c"], ["y"], name="scores", axis=-1),
    ]
    inputs, outputs = {"x": ("float32", [1, 16])}, {"y": ("float32", [1, 4])}
    return make_model(nodes, inputs, outputs, {"w0": first, "w1": second})


@pytest.fixture
def files(network, tmp_path):
    """The model, its data, and the folders of the calibration and of the analysis."""
    model, data = tmp_path / "model.onnx", tmp_path / "data.npz"
    onnx.save_model(network, str(model))
    x = np.random.default_rng(1).standard_normal((200, 1, 16)).astype(np.float32)
    np.savez(data, x=x)
    calibrated = tmp_path / "calibrated"
    calibrated.mkdir()
    calibrate(CalibrateConfig(""), model, calibrated, lambda *_: None, data)
    costs = [
        LayerCost(index, name, "MatMul", dtype, "measured")
        for index, name in enumerate(("first", "second"))
        for dtype in ("int8", "bfloat16")
    ]
    maps = [
        _map(1.0, 0.02, ("int8", "int8")),
        _map(2.0, 0.01, ("int8", "bfloat16")),
        _map(3.0, 0.02, ("bfloat16", "bfloat16")),
        _map(9.0, 0.0, ()),
    ]
    found = _write(tmp_path / "sensitive", maps, costs)
    return SimpleNamespace(
        model=model, data=data, calibrated=calibrated, sensitive=tmp_path / "sensitive", found=found
    )


def _ranges(files):
    return read_ranges(files.calibrated)


def _screen(files, out_dir, **values):
    config = dataclasses.replace(CONFIG, **values)
    out_dir.mkdir()
    return screen(
        config, files.model, files.sensitive, out_dir, lambda *_: None, files.data, files.calibrated
    )


def test_maps_are_measured_on_the_evaluation_samples(files, tmp_path):
    """Half of 200 samples; bfloat16 is closer to the float model than int8."""
    rows = []
    for first in range(3):
        # A limit near the drop: fewer samples do not decide.
        _screen(files, tmp_path / str(first), max_accuracy_drop=1e-4, first=first, least=first)
        rows.append(_rows(tmp_path / str(first))[0])
    assert [int(row["map"]) for row in rows] == [0, 1, 2]
    assert [row["samples"] for row in rows] == ["100"] * 3
    int8, mixed, halves = (float(row["cosine"]) for row in rows)
    assert 0.8 < int8 < mixed < halves < 1.0
    assert all(float(row["low"]) <= float(row["drop"]) <= float(row["high"]) for row in rows)


def test_few_samples_show_that_a_map_loses_far_too_much(files, monkeypatch):
    """Later maps are measured on all of the samples."""
    int8, *_ = files.found.dtype_maps
    measure = EmulatedAccuracy(CONFIG, files.model, files.found, files.data, _ranges(files))
    other = onnx.load(str(files.model))
    for matrix in other.graph.initializer:
        matrix.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(matrix), matrix.name))
    with monkeypatch.context() as patched:
        patched.setattr(measure, "_emulated", lambda one: other)
        lost = measure(int8, 0.0)
    assert lost.samples == 16 and lost.drop > 0.2
    assert measure(int8, 0.0).samples == 100


@pytest.mark.parametrize(
    ("low", "samples", "fidelity", "refused"),
    [
        (0.021, 16, "R2", True),  # 4 errors of 0.0046 above 0.01
        (0.020, 16, "R2", False),
        (0.021, 15, "R2", False),
        (0.021, 16, "", False),  # counted labels
        (None, 99, "R2", False),
    ],
)
def test_a_map_is_refused_four_standard_errors_above_the_limit(low, samples, fidelity, refused):
    high = None if low is None else 0.04
    found = Accuracy(
        "fidelity", 0.97, 1.0, None, 1.0, 0.0, samples, low=low, high=high, fidelity=fidelity
    )
    assert is_refused(found, 0.01) == refused


def test_samples_are_limited(files, tmp_path):
    _screen(files, tmp_path / "out", max_samples=7)
    assert _rows(tmp_path / "out")[0]["samples"] == "7"


def test_later_maps_are_measured_on_the_samples_of_the_first(files):
    measure = EmulatedAccuracy(CONFIG, files.model, files.found, files.data, _ranges(files))
    first, *_, last = files.found.dtype_maps[:3]
    begun = measure(first, 1e-6)
    assert begun.samples < 100
    assert measure(last, 0.0).samples == begun.samples


def test_int8_needs_the_calibration(files, tmp_path):
    with pytest.raises(ConfigError, match="needs the ranges of the calibrate stage, but got none"):
        screen(CONFIG, files.model, files.sensitive, tmp_path, lambda *_: None, files.data)


def test_a_metric_that_fails_on_a_map_refuses_it(files, tmp_path):
    """It returns NaN for outputs that are not the float model's."""
    metric = tmp_path / "metric.py"
    metric.write_text(
        "import numpy as np\n"
        "def exact(outputs, labels):\n"
        "    return 1.0 if np.abs(outputs - labels).max() < 1e-6 else float('nan')\n"
    )
    x = np.load(files.data)["x"]
    session = onnxruntime.InferenceSession(str(files.model), providers=["CPUExecutionProvider"])
    labels = np.stack([session.run(None, {"x": row})[0] for row in x])
    np.savez(files.data, x=x, labels=labels)
    result = _screen(files, tmp_path / "out", metric=f"{metric}:exact", metric_goal="larger")
    assert result.metrics["dtype_map"] == 3
    assert [row["drop"] for row in _rows(tmp_path / "out")] == [""] * 3


def test_layers_that_the_user_leaves_alone_stay_float(files):
    layers = layer_table(onnx.load(str(files.model)))
    one = files.found.dtype_maps[0]
    assert dtypes_of_map(CONVERT, layers, files.found, one) == {"first": "int8", "second": "int8"}
    for parameter in ("skip_layers", "keep_dtype"):
        config = dataclasses.replace(CONVERT, **{parameter: type(CONVERT.skip_layers).parse("0")})
        found = dtypes_of_map(config, layers, files.found, one)
        assert found == {"first": "float32", "second": "int8"}
