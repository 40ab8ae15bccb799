"""Entry point ``profile`` on the bundled example, in float32 and int8."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow.artifacts import download_artifacts

from tests.mlflow_runs import client_of, runs_of
from tests.profile.test_trace import check_schema
from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.profile.rows import read_rows
from tvmopt.tracking.pipeline import profile as entry

NAME = "digits-cnn"


@pytest.fixture(scope="module")
def store(tmp_path_factory, make_store, run_flow):
    """Return a store with two versions of the example: 1 is float32, 2 is int8."""
    folder = tmp_path_factory.mktemp("profile")
    make_store(folder)
    for dtype in ("float32", "int8"):
        done = run_flow(folder, "build", dtype=dtype, strategy="default", threads=1)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def printed(store, run_flow):
    """Return the output of the command for the int8 version."""
    done = run_flow(store, "profile", name=NAME, version="candidate", calls=10)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _run(store):
    query = "tags.`tvmopt.entry_point` = 'profile' and tags.`tvmopt.profiled_version` = '2'"
    return runs_of(client_of(store), query)[0]


def _artifact(store, file: str) -> Path:
    uri = f"sqlite:///{store / 'mlflow.db'}"
    run = _run(store).info.run_id
    return Path(download_artifacts(run_id=run, artifact_path=file, tracking_uri=uri))


def test_the_run_has_table_trace_and_page(store, printed):
    rows = read_rows(_artifact(store, "profile.csv"))
    baseline = read_rows(_artifact(store, "profile_baseline.csv"))
    layers = {row["layer"] for row in rows if row["layer"]}
    assert layers == {str(index) for index in range(7)}
    assert {row["dtype"] for row in rows if row["layer"]} == {"int8"}
    assert {row["dtype"] for row in baseline if row["layer"]} == {"float32"}
    assert all(float(row["ratio"]) > 0 for row in rows if row["layer"])
    data = json.loads(_artifact(store, "trace.json").read_text())
    check_schema(data)
    names = {e["args"]["name"] for e in data["traceEvents"] if e["name"] == "process_name"}
    assert names == {"model", "baseline"}
    page = _artifact(store, "profile.html").read_text()
    assert "Why int8 is faster or slower" in page and "What to try" in page
    for row in rows:
        assert row["layer_name"] in page


def test_metrics_and_note(store, printed):
    run = _run(store)
    assert run.info.status == "FINISHED"
    metrics = run.data.metrics
    assert 0.05 < metrics["profile_coverage"] < 2  # other work runs beside the tests
    assert metrics["profile_baseline_total_us"] > 0
    assert "of the kernels" in run.data.tags["mlflow.note.content"]


def test_the_console_has_a_short_table(printed):
    assert "a call takes" in printed and "in int8 than in float32" in printed
    head = next(line for line in printed.splitlines() if line.startswith("layer  name"))
    assert "instructions" in head and "ratio" in head


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"name": NAME, "version": "9"}, "version must be a version (2, 1) or an alias"),
        ({"name": "other"}, "name must be a registered model (digits-cnn), but got 'other'"),
        (
            {"name": NAME, "version": "1", "baseline": "2"},
            "baseline must be a float32 version of the same ONNX model",
        ),
    ],
)
def test_refusals_are_one_line(store, run_flow, parameters, message):
    done = run_flow(store, "profile", **parameters)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}")
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_damaged_model_is_refused(store, run_flow):
    version = client_of(store).get_model_version(NAME, "1")
    (library,) = [
        path for path in Path(_model_folder(store, version)).rglob("model.so") if path.is_file()
    ]
    content = library.read_bytes()
    try:
        library.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        done = run_flow(store, "profile", name=NAME, version="1")
    finally:
        library.write_bytes(content)
    assert done.returncode == 1
    assert "sha256" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def _model_folder(store, version) -> str:
    """Return the folder of a version's logged model in the store."""
    location = client_of(store).get_logged_model(version.source.removeprefix("models:/"))
    return str(location.artifact_location).removeprefix("file://")


def _version(**tags: str) -> SimpleNamespace:
    return SimpleNamespace(name="net", version="3", tags=tags)


def test_a_version_for_a_gpu_is_refused():
    with pytest.raises(ConfigError, match="version 3 of 'net' is for the GPU nvidia-h200"):
        entry._check_machine(_version(target="nvidia-h200"))
    entry._check_machine(_version(target="haswell"))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nvidia-h200", "is for the GPU nvidia-h200; profile a version for this CPU"),
        ("cortex-a76", "is for cortex-a76, and this machine lacks aarch64; profile a version"),
    ],
)
def test_a_model_of_another_machine_is_refused(target, message):
    saved = SimpleNamespace(metadata=SimpleNamespace(target=resolve_target(target).to_dict()))
    with pytest.raises(ConfigError, match=message):
        entry._check_saved(_version(), saved)


def test_the_baseline_is_the_newest_float32_version(monkeypatch):
    same = {"model_sha256": "a", "input_shapes": "", "target": "haswell", "threads": "2"}
    own = _version(**same, dtype="int8")
    found = [
        SimpleNamespace(name="net", version=str(n), tags={**same, **tags})
        for n, tags in [(9, {"dtype": "float32", "threads": "1"}), (8, {"dtype": "bfloat16"}),
                        (7, {"dtype": "float32"}), (6, {"dtype": "float32"})]
    ]  # fmt: skip
    monkeypatch.setattr(entry, "versions", lambda client, name: found)
    assert entry._baseline(None, own, "auto").version == "7"
    assert entry._baseline(None, own, "none") is None
    assert entry._baseline(None, _version(**same, dtype="float32"), "auto") is None
