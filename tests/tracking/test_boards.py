"""Commands for models of another CPU: build and register here, measure on a board."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.mlflow_runs import client_of, runs_of
from tests.ports import HOST
from tests.rpc import start_server, start_tracker


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_store):
    """Make a store for this test."""
    folder = tmp_path_factory.mktemp("boards")
    make_store(folder)
    return folder


@pytest.fixture
def board():
    """Return the parameters that select this machine as a board."""
    tracker = start_tracker()
    server = start_server(tracker.port, "own")
    yield {"rpc_tracker": f"{HOST}:{tracker.port}", "rpc_key": "own"}
    server.terminate()
    tracker.terminate()


def _run(folder, entry: str, stage: str = ""):
    client = client_of(folder)
    runs = runs_of(client, f"tags.`tvmopt.entry_point` = '{entry}'")
    if not stage:
        return runs[0]
    return client.get_run(runs[0].data.tags[f"tvmopt.stage_run.{stage}"])


@pytest.mark.slow
def test_a_model_for_another_cpu_is_built_and_not_measured(folder, mlflow_run, project_env, root):
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("needs aarch64-linux-gnu-gcc (Debian: gcc-aarch64-linux-gnu)")
    done = mlflow_run(folder, target="raspberry-pi-5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "models:/digits-cnn/1 registered, alias candidate" in done.stdout
    assert "version 1 is not promoted: this machine cannot run code for cortex-a76" in done.stdout
    assert "mlflow run . -e pull" in done.stdout
    tags = {stage: _run(folder, "main", stage).data.tags for stage in ("convert", "tune", "build")}
    assert "does not run on this machine" in tags["convert"]["tvmopt.unchecked"]
    assert "lacks aarch64" in tags["tune"]["tvmopt.unmeasured.tuning"]
    assert "lacks aarch64" in tags["build"]["tvmopt.unchecked"]
    measured = _run(folder, "main", "evaluate").data
    assert set(measured.metrics) == {"library_bytes"}
    assert "no rpc_tracker" in measured.tags["tvmopt.unmeasured.latency_ms_p50"]
    parent = _run(folder, "main")
    assert parent.info.status == "FINISHED"
    assert "latency_ms_p50" not in parent.data.metrics

    pulled = folder / "pulled"
    done = subprocess.run(
        [sys.executable, "-m", "flows.pull", "--name", "digits-cnn", "--version", "1",
         "--output", str(pulled)],
        cwd=root, env=project_env(folder), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "not run here: this machine lacks aarch64" in done.stdout
    assert (pulled / "model.so").read_bytes()[18] == 183  # ELF machine number of AArch64


@pytest.mark.slow
def test_board_measures_and_earns_the_champion(folder, run_flow, board):
    done = run_flow(folder, "main", strategy="default", repeats=20, name="there", **board)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of board own" in done.stdout
    assert "version 1 has alias champion" in done.stdout
    assert "ONNX Runtime fp32" not in done.stdout
    parent = _run(folder, "main")
    assert parent.data.params["rpc_key"] == "own"
    measured = _run(folder, "main", "evaluate").data
    assert measured.tags["tvmopt.rpc_key"] == "own"
    assert measured.metrics["accuracy"] > 0.97
    assert measured.metrics["speedup_vs_untuned"] > 0
