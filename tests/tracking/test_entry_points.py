"""Each entry point, on a model with two inputs and two outputs.

The file MLproject passes all parameters to every entry point (``tests/cli/test_command_line.py``);
the example of ``test_main.py`` runs through ``mlflow run``. Here the tuning granularity is the
operator; the example tunes subgraphs.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.mlflow_runs import client_of, runs_of
from tvmopt import host
from tvmopt.errors import DatabaseMismatchError
from tvmopt.tracking.pipeline.workflow import tune
from tvmopt.tracking.store.earlier import earlier_databases
from tvmopt.tracking.store.stage_run import Session
from tvmopt.tune.database import granularity_of


@pytest.fixture(scope="module")
def store(tmp_path_factory, make_store, two_input_model):
    """Make a store for this file, and write the model into it."""
    folder = tmp_path_factory.mktemp("entry-points")
    make_store(folder)
    onnx.save_model(two_input_model, str(folder / "two.onnx"))
    return folder


def _runs(folder, query: str):
    return runs_of(client_of(folder), query)


def _ok(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def steps(store, run_flow):
    """Run the entry points one after the other; return the output of each by name."""
    model = {"model": store / "two.onnx", "name": "two", "threads": 1}
    few = {**model, "granularity": "operator", "topk": 1}
    calls = {
        "convert": model,
        "tune": few,
        "build": few,
        "evaluate": {**few, "repeats": 20},
        "promote": {"name": "two"},
        "pull": {"name": "two", "output": store / "pulled"},
    }
    return {entry: _ok(run_flow(store, entry, **asked)) for entry, asked in calls.items()}


def test_steps_one_at_a_time_share_their_work(store, steps):
    assert "checked on random inputs" in steps["convert"]
    assert "convert            reused" in steps["tune"]
    assert "tune               reused" in steps["build"]
    assert "registered models:/two/1 as candidate" in steps["build"]
    assert "build              reused" in steps["evaluate"]
    assert "ONNX Runtime fp32" in steps["evaluate"]
    for stage in ("convert", "tune", "build", "evaluate"):
        (run,) = _runs(store, f"tags.`tvmopt.stage` = '{stage}'")
        assert run.info.status == "FINISHED"
        assert run.data.tags["tvmopt.entry_point"] == stage
    assert "version 1 has alias champion" in steps["promote"]
    assert "largest deviation from the golden output" in steps["pull"]
    assert {p.name for p in (store / "pulled").iterdir()} == {
        "README.md", "c", "code", "golden.npz", "model.json", "model.onnx", "model.so", "model.txt",
        "sample.py",
    }  # fmt: skip


def test_pulled_bundle_runs_without_this_package(store, steps, tmp_path):
    bundle = shutil.copytree(store / "pulled", tmp_path / "elsewhere")
    # -I and an empty folder: neither the checkout nor PYTHONPATH can help.
    block = (
        "import sys, runpy; bundle = sys.argv[1]\n"
        "runpy.run_path(bundle + '/sample.py', run_name='__main__')\n"
        "import tvmopt; assert tvmopt.__file__.startswith(bundle), tvmopt.__file__\n"
        "assert 'mlflow' not in sys.modules and 'onnx' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", block, str(bundle)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "largest deviation" in done.stdout


def test_pull_refuses_a_folder_that_is_in_use(store, steps, run_flow, tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    done = run_flow(store, "pull", name="two", output=tmp_path)
    assert done.returncode != 0
    assert "output must be a folder that is new or empty" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_registered_model_equals_onnx_runtime(store, steps, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")
    mlflow.set_tracking_uri(f"sqlite:///{store / 'mlflow.db'}")
    mlflow.set_registry_uri(f"sqlite:///{store / 'mlflow.db'}")
    try:
        model = mlflow.pyfunc.load_model("models:/two@champion")
    finally:
        mlflow.set_tracking_uri(None)
        mlflow.set_registry_uri(None)
    session = ort.InferenceSession(str(store / "two.onnx"), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(3)
    feeds = {
        i.name: rng.integers(0, 2, i.shape) if "int" in i.type
        else rng.standard_normal(i.shape).astype(np.float32)
        for i in session.get_inputs()
    }  # fmt: skip
    want = session.run(None, feeds)
    got = model.predict(feeds)
    assert len(got) == len(want)
    for output, a, b in zip(session.get_outputs(), got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)
        np.testing.assert_array_equal(got[output.name], a)


def _folder(run) -> Path:
    return Path(run.info.artifact_uri.removeprefix("file://"))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_tuning_by_operator_reaches_the_bundle(store, steps):
    assert "tasks by operator" in steps["tune"]
    assert "records: 1 operator; " in steps["build"]
    assert "tvmopt fast by operator" in steps["evaluate"]
    runs = {r.data.tags["tvmopt.stage"]: r for r in _runs(store, "tags.`tvmopt.stage` != ''")}
    for stage in ("tune", "build"):
        assert runs[stage].data.params["granularity"] == "operator"
        assert runs[stage].data.tags["tvmopt.granularity"] == "operator"
    assert granularity_of(_folder(runs["tune"]) / "database") == "operator"
    tasks = _rows(_folder(runs["tune"]) / "tasks.csv")
    [anchor] = [row for row in tasks if row["granularity"] == "operator"]
    assert anchor["task"].startswith("matmul of ") and anchor["latency_us"]
    schedules = _rows(_folder(runs["build"]) / "schedules.csv")
    assert [r["schedule"] for r in schedules if r["record"] == "operator"] == ["database"]
    assert runs["build"].data.tags["tvmopt.records"].startswith("1 operator; ")
    version = client_of(store).get_model_version_by_alias("two", "champion")
    assert version.tags["granularity"] == "operator"
    assert version.tags["build_run"] == runs["build"].info.run_id


def test_a_database_of_the_other_granularity_is_refused_before_any_work(store, steps, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")
    (run,) = _runs(store, "tags.`tvmopt.stage` = 'tune'")
    asked = {"model": str(store / "two.onnx"), "name": "two", "threads": 1, "topk": 3}
    try:
        with pytest.raises(DatabaseMismatchError) as caught:
            tune(**asked, warm_start=run.info.run_id)
    finally:
        mlflow.set_tracking_uri(None)
        mlflow.set_registry_uri(None)
    assert "granularity of the tuning database" in str(caught.value)
    assert "must be 'subgraph', but got 'operator'; tune again, or pass" in str(caught.value)
    (refused,) = _runs(store, f"params.warm_start = '{run.info.run_id}'")
    assert refused.info.status == "FAILED"
    assert not [tag for tag in refused.data.tags if tag.startswith("tvmopt.stage")]


def test_a_search_begins_from_databases_of_its_granularity_alone(
    store, steps, tmp_path, monkeypatch
):
    # This process has fewer cores once a model was run in it: TVM ties its threads to them.
    (run,) = _runs(store, "tags.`tvmopt.stage` = 'tune'")
    monkeypatch.setattr(host, "fingerprint", lambda: run.data.tags["tvmopt.fingerprint"])
    session = Session(client_of(store), run.info.experiment_id, "", {}, True, tmp_path, 1)
    [found] = earlier_databases(session, "operator")
    assert granularity_of(found) == "operator"
    assert earlier_databases(session, "subgraph") == []


@pytest.mark.slow
def test_metaschedule_measures_and_leaves_its_evidence(store, mlflow_run, root):
    done = mlflow_run(
        store,
        "tune",
        model=root / "tvmopt/examples/digits_cnn.onnx",
        input_shapes="batch=1",
        strategy="metaschedule",
        trials=8,
        time_budget=60,
    )
    _ok(done)
    (run,) = _runs(store, "tags.`tvmopt.stage` = 'tune' and params.strategy = 'metaschedule'")
    assert run.data.metrics["tune_trials"] == 8
    paths = {f.path for f in client_of(store).list_artifacts(run.info.run_id)}
    assert {"database", "convergence.png", "tasks.csv", "tuning_log.jsonl"} <= paths
    files = {f.path for f in client_of(store).list_artifacts(run.info.run_id, "database")}
    assert {"database/database_workload.json", "database/database_tuning_record.json"} <= files


@pytest.mark.slow
def test_metaschedule_by_operator_goes_all_the_way(store, steps, mlflow_run):
    asked = {"granularity": "operator", "strategy": "metaschedule", "trials": 8, "repeats": 20}
    said = _ok(mlflow_run(store, "main", model=store / "two.onnx", name="meta", **asked))
    assert "tvmopt metaschedule by operator" in said
    (run,) = _runs(store, "tags.`tvmopt.stage` = 'tune' and params.strategy = 'metaschedule' "
                          "and tags.`tvmopt.granularity` = 'operator'")  # fmt: skip
    assert run.data.metrics["tune_trials"] == 8
    assert granularity_of(_folder(run) / "database") == "operator"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"trials": "many"}, "trials must be a whole number, but got 'many'"),
        ({"model": "nowhere.onnx"}, "model must be an existing ONNX file or an MLflow URI"),
        ({"max_accuracy_drop": "-1"}, "max_accuracy_drop must be at least 0, but got -1"),
        ({"input_shapes": "x:1x2"}, "data and input_shapes need a model"),
        ({"target": "nvidia-h20"}, "target must be 'host', an LLVM CPU name"),
        (
            {"target": "h200", "layout": "NCHW16c"},
            "layout must be one of auto, NHWC, NCHW for a GPU (nvidia-h200), but got 'NCHW16c'",
        ),
    ],
)
def test_wrong_parameter_is_one_line_and_exit_code_2(refuse, params, message):
    refuse("main", params, message)


def test_the_command_itself_says_one_line(root, project_env, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "flows.main", "--strategy", "magic"],
        cwd=root, env=project_env(tmp_path), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    wanted = "error: strategy must be one of fast, default, metaschedule, none"
    assert done.stderr.startswith(wanted)
    assert not (tmp_path / "mlflow.db").exists()  # no run was opened


def test_failed_stage_is_a_failed_run_with_class_and_log(
    run_flow, tmp_path, make_store, make_model
):
    make_store(tmp_path)
    node = onnx.helper.make_node("Det", ["x"], ["y"], name="gate")
    model = make_model([node], {"x": ("float32", [3, 4, 4])}, {"y": ("float32", None)}, {})
    onnx.save_model(model, str(tmp_path / "det.onnx"))
    done = run_flow(tmp_path, "convert", fallback="refuse", model=tmp_path / "det.onnx")
    assert done.returncode == 2
    assert "Det x1 at gate" in done.stderr
    (run,) = _runs(tmp_path, "tags.`tvmopt.stage` = 'convert'")
    assert run.info.status == "FAILED"
    assert run.data.tags["tvmopt.failure_class"] == "unsupported_operator"
    assert "log.txt" in {f.path for f in client_of(tmp_path).list_artifacts(run.info.run_id)}
