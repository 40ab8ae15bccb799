"""A trial that crashes, hangs, exhausts memory or computes wrong results fails alone."""

from __future__ import annotations

import os
import subprocess

import pytest

# A sitecustomize module, which Python imports at start-up, also in the process that forks stages.
FAULTS = """
import os, signal, sys, time
def faulty(request, *args):
    layout = request["config"].get("layout")
    fault = {"NHWC": "crash", "NCHW16c": "hang", "NCHW8c": "memory"}.get(layout)
    if request["stage"] == "convert" and fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if request["stage"] == "convert" and fault == "hang":
        time.sleep(1000)
    if request["stage"] == "convert" and fault == "memory":
        eaten = []
        while True:
            eaten.append(bytearray(50_000_000))
            time.sleep(0.02)
    if request["stage"] == "evaluate":
        import yaml
        with open(request["inputs"]["convert"] + "/config.yaml") as file:
            wrong = yaml.safe_load(file)["layout"] == "NCHW4c"
        if wrong:
            from tvmopt.runtime import CompiledModel
            right = CompiledModel.__call__
            CompiledModel.__call__ = lambda self, x: [-y for y in right(self, x)]
    return run_stage(request, *args)
if "tvmopt.stages.fork_server" in sys.orig_argv:
    from tvmopt.stages import child
    run_stage, child.run_stage = child.run_stage, faulty
"""
TIMEOUT_S = 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_kind_of_fault_is_one_failed_run_and_the_search_goes_on(
    tmp_path, project_env, root, store, search_command
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    env = {**project_env(tmp_path), "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    command = search_command(
        layouts="NHWC,NCHW16c,NCHW8c,NCHW4c,NCHW", trials=5, trial_timeout=TIMEOUT_S,
        memory_limit=3000,
    )  # fmt: skip
    done = subprocess.run(
        command, env=env, cwd=root, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = store(tmp_path)
    failed = {r.data.params["layout"]: r for r in found.trials() if r.info.status == "FAILED"}
    assert {k: r.data.tags["tvmopt.failure_class"] for k, r in failed.items()} == {
        "NHWC": "crash", "NCHW16c": "timeout", "NCHW8c": "out_of_memory", "NCHW4c": "accuracy",
    }  # fmt: skip
    assert "SIGSEGV" in failed["NHWC"].data.tags["tvmopt.error"]
    assert f"{TIMEOUT_S} s" in failed["NCHW16c"].data.tags["tvmopt.error"]
    assert "latency_ms_p50" not in failed["NCHW4c"].data.metrics
    assert found.champion().tags["layout"] == "NCHW"
    # Each failed stage keeps its log.
    for run in failed.values():
        stages = found.runs(f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
        broken = [s for s in stages if s.info.status == "FAILED"]
        assert len(broken) == 1
        assert "log.txt" in {f.path for f in found.client.list_artifacts(broken[0].info.run_id)}


@pytest.mark.slow
def test_a_bar_that_nothing_meets_keeps_the_nearest_and_fails(
    tmp_path, project_env, root, store, search_command
) -> None:
    done = subprocess.run(
        search_command(layouts="NHWC", trials=1, max_library_mb=0.001),
        env={**project_env(tmp_path), "PYTHONPATH": str(root)}, cwd=root,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no artifact of the search keeps to its limits" in done.stderr
    found = store(tmp_path)
    [version] = found.client.search_model_versions("name='digits-cnn'")
    assert version.tags["feasible"] == "false"
    assert "champion" not in found.client.get_registered_model("digits-cnn").aliases
    [parent] = found.runs("tags.`tvmopt.entry_point` = 'search'")
    assert parent.info.status == "FAILED"
    assert parent.data.tags["tvmopt.failure_class"] == "nothing_feasible"
