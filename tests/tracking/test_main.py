"""``mlflow run .`` on the bundled example: its output and its runs in MLflow."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from mlflow.artifacts import list_artifacts

from tests.mlflow_runs import runs_of

_LOAD = """
import json, sys
import mlflow, numpy as np
model = mlflow.pyfunc.load_model(sys.argv[1])
image = np.load(sys.argv[2])["image"][:16]
rows = [model.predict(row[None]) for row in image] + [model.predict({"image": image[:1]})]
import tvmopt
print(json.dumps([np.concatenate(rows).tolist(), tvmopt.__file__]))
"""


def _runs(example, **tags):
    query = " and ".join(f"tags.`{k.replace('__', '.')}` = '{v}'" for k, v in tags.items())
    return runs_of(example.client(), query)


def test_output_ends_with_table_model_and_next_steps(example):
    out = example.done.stdout
    for variant in ("tvmopt fast", "untuned TVM", "ONNX Runtime fp32"):
        assert variant in out
    assert "models:/digits-cnn/1 registered" in out
    assert "version 1 has alias champion" in out
    assert out.rstrip().splitlines()[-4].startswith("open the UI     mlflow ui")
    assert "/runs?workflowType=machine_learning" in out
    assert "mlflow.pyfunc.load_model('models:/digits-cnn@champion')" in out
    assert out.rstrip().endswith("mlflow run . -e serve --env-manager local -P name=digits-cnn")


def test_no_progress_bars_in_a_pipe(example):
    assert "it/s" not in example.done.stderr + example.done.stdout
    assert "\r" not in example.done.stderr + example.done.stdout


def test_every_stage_is_a_finished_child_run(example):
    parent = _runs(example, tvmopt__entry_point="main")[-1]  # the oldest
    assert parent.info.status == "FINISHED"
    children = _runs(example, **{"mlflow__parentRunId": parent.info.run_id})
    assert sorted(r.info.run_name for r in children) == [
        "build",
        "build-untuned_tvm",
        "convert",
        "evaluate",
        "tune",
    ]
    for run in children:
        assert run.info.status == "FINISHED"
        assert run.info.experiment_id == parent.info.experiment_id
        assert len(run.data.tags["tvmopt.digest"]) == 64
        assert run.data.params["strategy"] == "fast"
        assert run.data.params["granularity"] == "subgraph"
        tag = parent.data.tags[f"tvmopt.stage_run.{run.info.run_name}"]
        assert tag == run.info.run_id
    tagged = {r.info.run_name for r in children if "tvmopt.granularity" in r.data.tags}
    assert tagged == {"tune", "build"}


def test_metrics_are_finite_and_complete(example):
    (parent,) = _runs(example, tvmopt__entry_point="main")[-1:]
    run = example.client().get_run(parent.data.tags["tvmopt.stage_run.evaluate"])
    metrics = run.data.metrics
    wanted = {f"latency_ms_{k}" for k in ("mean", "std", "p50", "p90", "p95", "p99")}
    wanted |= {"latency_ms_ci_low", "latency_ms_ci_high", "throughput_per_s", "accuracy"}
    wanted |= {"accuracy_drop", "max_abs_error", "library_bytes", "peak_memory_mb"}
    wanted |= {"speedup_vs_baseline", "speedup_vs_untuned"}
    assert wanted <= set(metrics)
    assert all(math.isfinite(v) for v in metrics.values())
    assert metrics["latency_ms_ci_low"] <= metrics["latency_ms_p50"]
    assert metrics["latency_ms_p50"] <= metrics["latency_ms_ci_high"]
    assert metrics["accuracy"] > 0.97
    assert abs(metrics["accuracy_drop"]) < 0.005
    assert metrics["speedup_vs_untuned"] > 1  # much more on an idle machine


@pytest.mark.parametrize(
    ("stage", "files"),
    [
        ("convert", ["config.yaml", "layers.csv", "module.py", "reference.onnx", "golden.npz"]),
        ("tune", ["config.yaml", "tasks.csv", "tuning_log.jsonl", "lowered.py"]),
        ("build", ["config.yaml", "bundle", "schedules.csv"]),
        ("evaluate", ["config.yaml", "comparison.csv", "latency_samples.json"]),
    ],
)
def test_artifacts_of_each_stage(use_example, stage, files):
    for run in _runs(use_example, tvmopt__stage=stage):
        found = {f.path for f in list_artifacts(run_id=run.info.run_id)}
        assert {*files, "manifest.json", "log.txt"} <= found


def test_layer_table_names_the_layers(use_example):
    (parent,) = _runs(use_example, tvmopt__entry_point="main")[-1:]
    run = use_example.client().get_run(parent.data.tags["tvmopt.stage_run.convert"])
    folder = Path(run.info.artifact_uri.removeprefix("file://"))
    lines = (folder / "layers.csv").read_text().splitlines()
    assert lines[0].startswith("index,name,op,shape")
    assert len(lines) == 1 + 7  # six convolutions and the classifier


def test_version_carries_tags_and_aliases(example):
    client = example.client()
    version = client.get_model_version_by_alias("digits-cnn", "champion")
    wanted = {"target", "tvm", "sha256", "digest", "latency_ms_p50", "accuracy"}
    assert wanted <= set(version.tags)
    aliases = client.get_registered_model("digits-cnn").aliases
    assert f"champion-{version.tags['target']}" in aliases
    assert "candidate" in aliases


def test_logged_model_is_in_the_experiment_of_its_run(example):
    client = example.client()
    version = client.get_model_version("digits-cnn", "1")
    model = client.get_logged_model(version.source.removeprefix("models:/"))
    run = client.get_run(version.tags["build_run"])
    assert model.source_run_id == run.info.run_id
    assert model.experiment_id == run.info.experiment_id


def test_clean_process_loads_the_champion_and_equals_onnx_runtime(example, project_env, root):
    data = root / "tvmopt/examples/digits_eval.npz"
    env = {k: v for k, v in project_env(example.folder).items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, "models:/digits-cnn@champion", str(data)],
        cwd="/",
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    got, loaded_from = json.loads(done.stdout.splitlines()[-1])
    image = np.load(data)["image"][:16]
    session = ort.InferenceSession(
        str(root / "tvmopt/examples/digits_cnn.onnx"), providers=["CPUExecutionProvider"]
    )
    want = np.concatenate([session.run(None, {"image": row[None]})[0] for row in image])
    np.testing.assert_allclose(got, np.concatenate([want, want[:1]]), atol=1e-3)
    assert "mlruns" in loaded_from  # the code inside the model, not this checkout


def test_second_run_reuses_every_stage(example, mlflow_run):
    before = len(_runs(example, tvmopt__entry_point="main"))
    stages = {r.info.run_id for r in _runs(example) if "tvmopt.stage" in r.data.tags}
    done = mlflow_run(example.folder)
    assert done.returncode == 0, done.stderr
    assert "reused     convert, tune, build, build-untuned_tvm, evaluate" in done.stdout
    assert "models:/digits-cnn/1 already registered" in done.stdout
    assert {r.info.run_id for r in _runs(example) if "tvmopt.stage" in r.data.tags} == stages
    assert len(_runs(example, tvmopt__entry_point="main")) == before + 1


@pytest.mark.slow  # the next test has a dry run
def test_a_dry_run_says_what_would_be_reused_and_runs_nothing(example, mlflow_run):
    before = {run.info.run_id for run in _runs(example)}
    done = mlflow_run(example.folder, dry_run="true")
    assert done.returncode == 0, done.stderr
    for step in ("convert", "tune", "build", "build-untuned_tvm", "evaluate"):
        assert re.search(rf"^{step} +reused from run [0-9a-f]{{8}}, digest", done.stdout, re.M)
    assert "would run" not in done.stdout
    for line in ("topk: 1", "name: digits-cnn", "input_shapes: image:1x1x8x8", "dtype: float32"):
        assert f"\n{line}\n" in done.stdout
    [own] = [run for run in _runs(example) if run.info.run_id not in before]
    assert (own.info.status, own.data.tags["tvmopt.dry_run"]) == ("FINISHED", "true")


def test_a_dry_run_of_something_else_says_what_would_run(example, run_flow):
    before = len(_runs(example))
    done = run_flow(example.folder, "main", dry_run="true", dtype="int8", skip_layers="auto")
    assert done.returncode == 0, done.stderr
    said = re.findall(r"^([\w-]+) +would run, digest [0-9a-f]{12}$", done.stdout, re.M)
    assert said == [
        "calibrate", "sensitivity", "convert", "build-untuned_tvm", "tune", "build", "evaluate",
    ]  # fmt: skip
    assert len(_runs(example)) == before
