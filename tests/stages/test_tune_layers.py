"""The tune stage where layers have alternative implementations: measured, chosen, built."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from tests.libraries import loaded
from tvmopt.build import build_library
from tvmopt.config import TuneConfig
from tvmopt.device.target import resolve_target
from tvmopt.stages import tune_layers
from tvmopt.stages.module_files import write_module
from tvmopt.stages.tune import tune
from tvmopt.stages.tune_files import (
    ALTERNATIVES_FILE,
    DATABASE_DIR,
    LOG_FILE,
    PLAN_FILE,
    TASKS_FILE,
)
from tvmopt.transform.lower import lower
from tvmopt.transform.plan import Implementation, free_layouts, read_plan

from ..transform.plan_net import inputs, residual_net, residual_net_numpy

SPEC = resolve_target("host", 1)
BLOCKED = Implementation("NCHW16c")


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    mod = residual_net()
    free_layouts(mod)
    write_module(folder, mod)
    return folder, mod


@pytest.fixture(scope="module")
def tuned(converted, tmp_path_factory):
    """Run the stage once; return its result and its folder."""
    folder, _ = converted
    out = tmp_path_factory.mktemp("tuned")
    return tune(TuneConfig(SPEC.to_dict(), topk=1), folder, out, lambda *_: None), out


def rows(path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_every_way_is_measured_and_one_chosen_a_layer(tuned) -> None:
    result, out = tuned
    listed = rows(out / ALTERNATIVES_FILE)
    assert {row["layer"] for row in listed} == {"0", "1", "2", "3"}
    for layer in "0123":
        candidates = [row for row in listed if row["layer"] == layer]
        assert len(candidates) >= 2
        assert [row["chosen"] for row in candidates].count("True") == 1
        chosen = next(row for row in candidates if row["chosen"] == "True")
        assert float(chosen["latency_us"]) > 0
    plan = read_plan(out / PLAN_FILE)
    assert sorted(plan) == [0, 1, 2, 3]
    assert any("chosen: " in line for line in result.changed)


def test_every_task_of_the_chosen_plan_has_a_record(tuned) -> None:
    _, out = tuned
    tasks = rows(out / TASKS_FILE)
    assert tasks
    assert {row["source"] for row in tasks} == {"database"}
    assert {row["granularity"] for row in tasks} == {"subgraph"}
    assert not any(word in json.dumps(tasks) for word in ("default", "fallback"))
    names = {json.loads(line)["task"] for line in (out / LOG_FILE).read_text().splitlines()}
    assert {row["task"] for row in tasks} <= names


def test_what_is_built_by_the_plan_computes_the_same(converted, tuned, tmp_path) -> None:
    _, out = tuned
    lowered = lower(converted[1], SPEC.to_tvm(), plan=read_plan(out / PLAN_FILE))
    built = build_library(lowered, SPEC, tmp_path / "net.so", database_dir=out / DATABASE_DIR)
    assert set(built.records.values()) == {"subgraph"}
    [got] = loaded(built.path)(inputs())
    np.testing.assert_allclose(got, residual_net_numpy(inputs()), rtol=2e-3, atol=2e-3)


@pytest.mark.slow
def test_the_network_decides_between_plans(converted, tuned, tmp_path, monkeypatch) -> None:
    """The plan with the faster network is kept, whatever the sum of its parts predicts."""
    _, out = tuned
    for faster in (0, 1):
        timed: list[list[str]] = []

        def measured(lowered, target, database_dir, faster=faster, timed=timed):
            timed.append(list(lowered))
            return {name: 1.0 if n == faster else 2.0 for n, name in enumerate(lowered)}

        monkeypatch.setattr(tune_layers, "measured_seconds", measured)
        monkeypatch.setattr(tune_layers, "_NEAR", 1e9)
        result = tune(
            TuneConfig(SPEC.to_dict(), topk=1), converted[0], _made(tmp_path / str(faster)),
            lambda *_: None, warm_start=out / DATABASE_DIR,
        )  # fmt: skip
        assert len(timed[0]) >= 2
        assert f"chosen: {timed[0][faster]};" in " ".join(result.changed)


def test_a_short_time_is_for_the_layers_as_converted(converted, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tune_layers, "find_alternatives", pytest.fail)
    monkeypatch.setattr("tvmopt.stages.tune._S_A_FUNCTION", 0.3)
    config = TuneConfig(SPEC.to_dict(), topk=1, time_budget=4.0)  # 10 implementations
    result = tune(config, converted[0], tmp_path, lambda *_: None)
    assert not (tmp_path / PLAN_FILE).exists()
    assert "layers stay as converted: the time is too short" in " ".join(result.changed)


def test_a_spent_time_leaves_the_layers_as_converted(converted, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tune_layers, "measured_seconds", pytest.fail)
    monkeypatch.setattr(tune_layers, "_S_AN_IMPLEMENTATION", 0.0)
    monkeypatch.setattr("tvmopt.stages.tune._S_A_FUNCTION", 0.0)
    config = TuneConfig(SPEC.to_dict(), time_budget=1e-3)
    result = tune(config, converted[0], tmp_path, lambda *_: None)
    assert read_plan(tmp_path / PLAN_FILE) == {}
    assert "layers stay as converted: the time was spent" in " ".join(result.changed)
    assert {row["source"].partition(":")[0] for row in rows(tmp_path / TASKS_FILE)} == {"default"}


@pytest.mark.slow  # test_entry_points.py tunes by operator
def test_by_operator_the_converted_layout_stays(converted, tmp_path) -> None:
    config = TuneConfig(SPEC.to_dict(), topk=1, granularity="operator")
    result = tune(config, converted[0], tmp_path, lambda *_: None)
    assert not (tmp_path / PLAN_FILE).exists()
    assert any("tasks by operator" in line for line in result.changed)
    tasks = rows(tmp_path / TASKS_FILE)
    measured = [row for row in tasks if row["granularity"] == "operator"]
    assert len(measured) >= 4
    assert all(" of " in row["task"] for row in measured)


def _made(path):
    path.mkdir()
    return path
