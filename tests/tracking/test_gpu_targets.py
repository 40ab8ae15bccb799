"""Models for a GPU on a machine without one: built and registered, not measured."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tvm

from tests.mlflow_runs import client_of, runs_of

pytestmark = [
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed"),
    pytest.mark.skipif(bool(tvm.runtime.cuda(0).exist), reason="this machine has a GPU"),
]
_GPUS = {
    # target: its name, compute capability, dtype, tensor-core instruction
    "nvidia-h200": ("nvidia-h200", "9.0", "float16", "HGMMA"),
    "a100": ("nvidia-a100", "8.0", "float32", "no tensor instructions"),
}
only_one = pytest.mark.parametrize("built", ["nvidia-h200"], indirect=True)


@pytest.fixture(
    scope="module", params=["nvidia-h200", pytest.param("a100", marks=pytest.mark.slow)]
)
def built(request, tmp_path_factory, run_flow, make_store):
    """Return a finished run of main for one GPU: folder, output, expected facts."""
    name, version, dtype, used = _GPUS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    make_store(folder)
    done = run_flow(folder, "main", target=request.param, dtype=dtype)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout, name, version, used


def _run(folder: Path, stage: str = ""):
    client = client_of(folder)
    [run] = runs_of(client, "tags.`tvmopt.entry_point` = 'main'")
    return client.get_run(run.data.tags[f"tvmopt.stage_run.{stage}"]) if stage else run


def _artifacts(run) -> Path:
    return Path(run.info.artifact_uri.removeprefix("file://"))


def test_the_run_finishes_without_measurements(built) -> None:
    folder, said, name, version, _ = built
    lacks = f"this machine lacks a GPU of compute capability {version} ({name})"
    assert f"not measured: {lacks}; evaluate it on a machine with that GPU" in said
    assert "models:/digits-cnn/1 registered, alias candidate" in said
    assert f"version 1 is not promoted: this machine cannot run code for {name}" in said
    assert "with that GPU with -e promote -P name=digits-cnn -P version=1" in said
    parent = _run(folder)
    assert parent.info.status == "FINISHED"
    assert "latency_ms_p50" not in parent.data.metrics
    tags = {stage: _run(folder, stage).data.tags for stage in ("convert", "tune", "build")}
    assert f"{name} does not run on this machine: its CPU" in tags["convert"]["tvmopt.unchecked"]
    assert tags["convert"]["tvmopt.layout"] == "NHWC"
    assert tags["tune"]["tvmopt.unmeasured.tuning"].startswith(f"{lacks}: top-1 of")
    assert tags["build"]["tvmopt.unchecked"] == lacks
    measured = _run(folder, "evaluate").data
    assert set(measured.metrics) == {"library_bytes"}
    names = ("latency_ms_p50", "accuracy", "golden_max_deviation", "peak_memory_mb")
    assert {measured.tags[f"tvmopt.unmeasured.{n}"] for n in names} == {lacks}


def test_every_function_has_a_kernel_of_known_template(built) -> None:
    folder, *_, used = built
    run = _run(folder, "build")
    assert used in run.data.tags["tvmopt.instructions"]
    with (_artifacts(run) / "schedules.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows and all(row["schedule"].startswith("default:") for row in rows)
    said = {row["instructions"] for row in rows}
    assert used in said or said == {""}
    assert {row["record"] for row in rows} == {"none: no database"}


def test_the_library_holds_machine_code_and_no_source(built) -> None:
    folder, *_ = built
    data = (_artifacts(_run(folder, "build")) / "bundle" / "model.so").read_bytes()
    assert data.count(b"\x7fELF") >= 2  # the library itself, and what the GPU runs
    assert b"__global__" not in data


@pytest.mark.slow  # test_entry_points.py pulls a model
@only_one
def test_it_can_be_pulled_but_not_loaded(built, run_flow) -> None:
    folder, _, name, version, *_ = built
    asked = {"name": "digits-cnn", "version": "1", "output": folder / "pulled"}
    done = run_flow(folder, "pull", **asked)
    assert done.returncode == 0, done.stderr
    assert f"not run here: this machine lacks a GPU of compute capability {version}" in done.stdout
    assert f"for {name}\n(a GPU of" in (folder / "pulled" / "README.md").read_text()
    done = subprocess.run(
        [sys.executable, "-I", str(folder / "pulled" / "sample.py")],
        capture_output=True, text=True,
    )  # fmt: skip
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("tvmopt.errors.ArtifactError: the model was built for " + name)
    assert "there is no NVIDIA driver" in said


@only_one
@pytest.mark.slow
def test_promotion_is_refused(built, root, project_env) -> None:
    folder, _, name, *_ = built
    done = subprocess.run(
        [sys.executable, "-m", "flows.promote", "--name", "digits-cnn", "--version", "1"],
        cwd=root, env=project_env(folder), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and f"was built for {name}" in done.stderr
