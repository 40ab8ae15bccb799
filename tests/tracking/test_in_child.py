"""A model or library that hangs, crashes or exhausts memory gives a one-line error, no open run.

The libraries are registered like any other, with all hashes. They misbehave when they are opened.
"""

from __future__ import annotations

import dataclasses
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import mlflow
import onnx
import psutil
import pytest
from mlflow import MlflowClient
from onnx import helper

from tests.mlflow_runs import client_of, runs_of
from tvmopt import host
from tvmopt.digest import sha256_file
from tvmopt.errors import (
    ArtifactError,
    EnvironmentSetupError,
    LimitError,
    PromotionRefusedError,
    StageFailedError,
)
from tvmopt.runtime import ModelMetadata
from tvmopt.runtime.metadata import LIBRARY_FILE
from tvmopt.search.limits import Limits
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.flavor import in_child
from tvmopt.tracking.pipeline.request import make_request
from tvmopt.tracking.registry import pull
from tvmopt.tracking.registry import versions as registry
from tvmopt.tracking.registry.promote import promote
from tvmopt.tracking.search.finals import _rival
from tvmopt.tracking.store import stage_run
from tvmopt.tracking.store.artifacts import write_manifest
from tvmopt.tracking.store.stage_run import Session

# Action of a library when it is opened, its time limit in seconds, and the expected error.
LIBRARIES = {
    "crashes": ("*(volatile int *)0 = 1;", 100.0, "was ended by SIGSEGV"),
    "hangs": ("for (;;) sleep(1);", 6.0, "may take 6 s, and had not ended by then"),
    "eats memory": (
        "for (;;) { memset(malloc(20 << 20), 1, 20 << 20); usleep(5000); }",
        100.0,
        r"may use 1500 MB of memory, but used \d+ MB",
    ),
}


@pytest.fixture
def client(store_uri, tmp_path, monkeypatch) -> MlflowClient:
    """Return a client of the store, which commands of this process also use."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store_uri)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(store_uri)
    mlflow.set_registry_uri(store_uri)
    yield client_of(store_uri)
    # None, not the value before: a URI that is set takes precedence over the environment.
    mlflow.set_tracking_uri(None)
    mlflow.set_registry_uri(None)


@pytest.fixture(scope="module")
def bad_library(tmp_path_factory) -> Callable[[str], Path]:
    """Build a library that runs an action when it is opened."""
    folder = tmp_path_factory.mktemp("libraries")

    def build(kind: str) -> Path:
        source, library = folder / "bad.c", folder / f"{kind}.so"
        source.write_text(
            "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
            f"__attribute__((constructor)) static void f(void) {{ {LIBRARIES[kind][0]} }}\n"
        )
        command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(command, check=True)
        return library

    return build


@pytest.fixture
def register_bad(client, conv_build, conv_bundle, bad_library, tmp_path) -> Callable[[str], str]:
    """Register such a library in place of a compiled model; return the name."""

    def register(kind: str, **tags: str) -> str:
        name = tmp_path.name
        bundle = Path(shutil.copytree(conv_bundle, tmp_path / "bundle"))
        shutil.copyfile(bad_library(kind), bundle / LIBRARY_FILE)
        model = ModelMetadata.read(bundle)
        changed = sha256_file(bundle / LIBRARY_FILE)
        dataclasses.replace(model, library_sha256=changed, library_parts=()).write(bundle)
        experiment = client.create_experiment(name, (tmp_path / "artifacts").as_uri())
        run = client.create_run(experiment)
        converted = Path(shutil.copytree(conv_build / "convert", tmp_path / "converted"))
        write_manifest(converted)
        convert_run = client.create_run(experiment)
        client.log_artifacts(convert_run.info.run_id, str(converted))
        tags = {**tags, "convert_run": convert_run.info.run_id}
        registry.register(client, name, bundle, run.info.run_id, tags)
        for opened in (run, convert_run):
            client.set_terminated(opened.info.run_id)
        return name

    return register


def _statuses(client: MlflowClient) -> list[str]:
    return [run.info.status for run in runs_of(client)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", LIBRARIES)
def test_promotion_refuses_what_it_cannot_run(client, register_bad, tmp_path, kind):
    name = register_bad(kind)
    _, seconds, words = LIBRARIES[kind]
    with pytest.raises(PromotionRefusedError, match=words) as refused:
        promote(name, version="1", stage_timeout=seconds, memory_limit=1500.0)
    assert "\n" not in str(refused.value)
    assert f"version 1 of {name!r} is not promoted: the heldout process" in str(refused.value)
    assert client.get_registered_model(name).aliases.keys() == {"candidate"}
    [run] = runs_of(client, f"params.name = '{name}' and tags.`tvmopt.entry_point` = 'promote'")
    assert run.info.status == "FAILED"
    assert run.data.tags["tvmopt.failure_class"] == "promotion_refused"
    assert [f.path for f in client.list_artifacts(run.info.run_id)] == ["heldout.log"]
    assert "RUNNING" not in _statuses(client)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow  # promotion refuses such a library above
def test_champion_that_crashes_is_no_obstacle(client, register_bad, tmp_path):
    wanted = {
        "model_sha256": "m", "input_shapes": "x:1", "target": "cpu", "threads": "2",
        "accuracy_drop": "0",
    }  # fmt: skip
    name = register_bad("crashes", **wanted)
    registered = client.get_model_version(name, "1")
    client.set_registered_model_alias(name, "champion", "1")
    client.set_model_version_tag(name, "1", "target", "cpu")
    request = SimpleNamespace(
        name=name, model_digest="m", convert=SimpleNamespace(input_shapes="x:1"),
        target=SimpleNamespace(device="cpu", threads=2),
    )  # fmt: skip
    session = Session(client, "0", "0", {}, True, tmp_path, 1, lambda: Allowance(60.0))
    assert registered.tags["model_sha256"] == "m"
    assert _rival(session, request, Limits(0.01), set()) is None


def _slow_to_fold() -> onnx.ModelProto:
    """Write a small model whose constants take ONNX Runtime's optimiser minutes to fold."""
    size, many = 2048, 2000
    shape = helper.make_tensor("shape", onnx.TensorProto.INT64, [2], [size, size])
    one = helper.make_tensor("one", onnx.TensorProto.FLOAT, [1], [1.0])
    nodes = [helper.make_node("Expand", ["one", "shape"], ["c0"])]
    nodes += [
        helper.make_node("MatMul", [f"c{i}", "c0"], [f"c{i + 1}"], name=f"m{i}")
        for i in range(many)
    ]
    nodes += [helper.make_node("MatMul", ["x", f"c{many}"], ["y"], name="last")]
    place = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, size]) for name in "xy"
    ]
    graph = helper.make_graph(nodes, "g", place[:1], place[1:], [shape, one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("slow") / "slow.onnx"
    onnx.save_model(_slow_to_fold(), str(path))
    assert path.stat().st_size < 200_000
    return path


def test_listing_layers_of_an_endless_model_times_out(slow_model):
    start = time.monotonic()
    with pytest.raises(LimitError, match="prepare process was stopped: it may take 3 s") as error:
        make_request(slow_model, skip_layers="last", threads=1, allowance=Allowance(3.0))
    assert "\n" not in str(error.value)
    assert time.monotonic() - start < 30


@pytest.mark.slow  # the test above bounds the listing itself
def test_commands_bound_the_list_of_layers(slow_model, tmp_path, monkeypatch, run_python):
    done = run_python(
        "-m", "flows.convert", "--model", str(slow_model), "--skip_layers", "last",
        "--threads", "1", "--stage_timeout", "3",
        TMPDIR=str(tmp_path), MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path / 'mlflow.db'}",
    )  # fmt: skip
    assert done.returncode == 1
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("error: the prepare process was stopped: it may take 3 s")
    assert list(tmp_path.iterdir()) == []  # no run was opened


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", StageFailedError, "was ended by SIGSEGV"),
        ("raise MemoryError", LimitError, "the prepare process needs more memory than there is"),
        ("raise OSError", StageFailedError, "failed with an unexpected error: OSError$"),
    ],
)
def test_layers_of_a_model_that_crashes(tmp_path, monkeypatch, slow_model, body, kind, message):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys, types\n"
        "def write_layers(*args):\n"
        f"    {body}\n"
        "sys.modules['tvmopt.stages.layers'] = types.SimpleNamespace(write_layers=write_layers)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(kind, match=message) as error:
        in_child.model_layers(slow_model, "", Allowance(60.0))
    assert "\n" not in str(error.value)


def test_layers_are_those_of_the_model(conv_build):
    layers = in_child.model_layers(conv_build / "model.onnx", "", Allowance(60.0, 4000.0))
    assert [(layer.index, layer.name, layer.op) for layer in layers] == [
        (0, "conv", "Conv"), (1, "dense", "Gemm"),
    ]  # fmt: skip


class TestTheSampleOfPull:
    def test_memory_has_a_limit(self, tmp_path, monkeypatch):
        (tmp_path / "sample.py").write_text(
            "import time; eaten = []\nwhile True: eaten.append(bytearray(10**7)); time.sleep(0.01)"
        )
        monkeypatch.setattr(pull, "memory_mb", lambda limit: 300.0)
        with pytest.raises(ArtifactError, match="may use 300 MB of memory, but used") as error:
            pull._run_sample(tmp_path)
        assert "\n" not in str(error.value)

    def test_it_runs_as_a_script_without_secrets(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "s3cr3t")
        monkeypatch.setenv("TVMOPT_CACHE_KEY", "s3cr3t" * 4)
        (tmp_path / "sample.py").write_text(
            "import os, sys\nassert __name__ == '__main__'\n"
            "print(__file__, sys.argv, 's3cr3t' in str(dict(os.environ)))"
        )
        sample = str(tmp_path / "sample.py")
        assert pull._run_sample(tmp_path) == f"{sample} {[sample]} False"

    def test_it_ends_with_the_command(self, tmp_path):
        (tmp_path / "sample.py").write_text(
            "import os, pathlib, time\npathlib.Path('new').write_text(str(os.getpid()))\n"
            "os.rename('new', 'pid'); time.sleep(60)"
        )
        code = (
            "import sys; from pathlib import Path; from tvmopt.tracking.registry import pull\n"
            "pull._run_sample(Path(sys.argv[1]))"
        )
        parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
        try:
            end = time.monotonic() + 60
            while not (tmp_path / "pid").exists():
                assert time.monotonic() < end
                time.sleep(0.02)
            sample = psutil.Process(int((tmp_path / "pid").read_text()))
        finally:
            parent.send_signal(signal.SIGKILL)
            parent.wait()
        psutil.wait_procs([sample], timeout=10)
        assert host.process_start(sample.pid) is None


def test_a_stage_begins_only_where_there_is_space(client, conv_build, tmp_path, monkeypatch):
    launched: list[str] = []
    monkeypatch.setattr(stage_run, "launch", lambda stage, *args, **more: launched.append(stage))
    free = SimpleNamespace(free=50_000_000)
    monkeypatch.setattr(stage_run.shutil, "disk_usage", lambda folder: free)
    experiment = client.create_experiment(tmp_path.name)
    session = Session(client, experiment, client.create_run(experiment).info.run_id, {}, False,
                      tmp_path / "work", 1)  # fmt: skip
    session.work_dir.mkdir()
    config = SimpleNamespace(to_dict=dict)
    with pytest.raises(EnvironmentSetupError, match="needs about 100 MB of free space in") as error:
        inputs = {"model": conv_build / "model.onnx"}
        planned = stage_run.Planned("convert", "convert", config, "digest", {"model": "d"}, inputs)
        stage_run.run_stage(session, planned)
    assert "there are 50 MB; free space, or set TMPDIR to a folder with more" in str(error.value)
    assert "\n" not in str(error.value)
    assert launched == []
    [run] = client.search_runs([experiment], "tags.`tvmopt.stage` = 'convert'")
    assert (run.info.status, run.data.tags["tvmopt.failure_class"]) == ("FAILED", "environment")


def test_space_that_is_needed_grows_with_the_files_that_are_read(tmp_path, monkeypatch):
    with (tmp_path / "large.onnx").open("wb") as file:
        file.truncate(10**9)
    inputs = {"model": tmp_path / "large.onnx"}
    free = SimpleNamespace(free=4 * 10**9)
    monkeypatch.setattr(stage_run.shutil, "disk_usage", lambda folder: free)
    with pytest.raises(EnvironmentSetupError, match="convert needs about 4100 MB"):
        stage_run._check_space(tmp_path, "convert", inputs)
    free.free = 5 * 10**9
    stage_run._check_space(tmp_path, "convert", inputs)


def test_a_child_that_is_killed_leaves_no_temporary_file(tmp_path, monkeypatch, slow_model):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys, tempfile, types\n"
        "def write_layers(*args):\n"
        "    tempfile.mkdtemp(); tempfile.mkstemp()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.modules['tvmopt.stages.layers'] = types.SimpleNamespace(write_layers=write_layers)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(StageFailedError, match="was ended by SIGKILL"):
        in_child.model_layers(slow_model, "", Allowance(60.0))
    assert list((tmp_path / "tmp").iterdir()) == []
