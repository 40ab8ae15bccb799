"""A search on a pretended GPU, from the data to the champion; see ``tests/fake_gpu``."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from tests.commands import CommandServer
from tvmopt.search.effort import Effort

FAKE = Path(__file__).parents[1] / "fake_gpu"
_TRIALS = 5
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def environment(project_env, root):
    """Return the environment of a command on a machine with the pretended GPU."""

    def env(folder: Path) -> dict[str, str]:
        path = os.pathsep.join(map(str, (FAKE, root)))
        return {
            **project_env(folder),
            "PYTHONPATH": path,
            "PRETENDED_GPU_FULL": "bfloat16",
            "XDG_CACHE_HOME": str(folder),  # its own locks: it need not wait for the machine
        }

    return env


@pytest.fixture(scope="module")
def run(environment, tmp_path_factory, root):
    """Run a command on a machine with the pretended GPU, in a store; return its output."""
    folder = tmp_path_factory.mktemp("commands")
    server = CommandServer(folder, environment(folder))

    def output(words: list[str], store_folder: Path) -> str:
        done = server.run(words, environment(store_folder), root)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield output
    server.close()


@pytest.fixture(scope="module")
def command(search_command, tmp_path_factory):
    """Return the words of the search: bfloat16 does not fit."""
    space = tmp_path_factory.mktemp("space") / "space.yaml"
    space.write_text("skip_layers: {bfloat16: ['']}\n")
    _, _, *words = search_command(
        target="cuda", threads=1, dtypes="float32,float16,bfloat16", layouts="NHWC", topk=1,
        strategies="default,fast", trials=_TRIALS, time_budget=0, sensitivity_time=3, repeats=20,
        space=space,
    )  # fmt: skip
    return words


@pytest.fixture(scope="module")
def searched(tmp_path_factory, make_store, store, command, run):
    """Return folder, store and output of the finished search."""
    folder = tmp_path_factory.mktemp("gpu-search")
    make_store(folder)
    said = run(command, folder)
    return folder, store(folder), said


def _stage(found, run, stage: str):
    return found.client.get_run(run.data.tags[f"tvmopt.stage_run.{stage}"])


@pytest.mark.slow  # 80 s; test_search.py searches on the CPU
def test_a_search_on_a_gpu_leaves_a_champion(searched) -> None:
    _, found, said = searched
    version = found.champion()
    assert version.tags["target"] == "nvidia-a100"
    assert "champion" in version.aliases and f"version {version.version} has alias champion" in said
    trials = found.trials()
    zero = next(r for r in trials if r.data.tags["tvmopt.trial"] == "0")
    assert zero.info.status == "FINISHED" and zero.data.params["layout"] == "NCHW"
    for run in (r for r in trials if r.info.status == "FINISHED"):
        # ONNX Runtime on the CPU does not tell the speed of a GPU
        metrics = run.data.metrics
        assert metrics["latency_ms_adjusted"] == metrics["latency_ms_p50"]
        assert "pretended" in _stage(found, run, "evaluate").data.tags["tvmopt.gpu"]


@pytest.mark.slow  # of the search above
def test_each_granularity_serves_functions_of_the_network(searched) -> None:
    _, found, _ = searched
    efforts = {}
    for run in found.trials():
        effort = Effort.parse(run.data.params["effort"])
        if effort.measures and run.info.status == "FINISHED":
            efforts[effort.granularity] = _stage(found, run, "build")
    assert efforts.keys() >= {"operator"}
    for granularity, build in efforts.items():
        assert granularity in build.data.tags["tvmopt.records"]
        folder = Path(build.info.artifact_uri.removeprefix("file://"))
        with (folder / "schedules.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert any(row["schedule"] == "database" for row in rows)


@pytest.mark.slow  # of the search above
def test_a_trial_that_does_not_fit_fails_alone(searched) -> None:
    _, found, said = searched
    failed = [r for r in found.trials() if r.info.status == "FAILED"]
    assert failed and {r.data.params["dtype"] for r in failed} == {"bfloat16"}
    assert {r.data.tags["tvmopt.failure_class"] for r in failed} == {"out_of_memory"}
    assert "must fit into the memory of this machine's GPU" in said


@pytest.mark.slow  # of the search above
def test_a_feasible_16_bit_float_is_not_analysed(searched) -> None:
    _, found, said = searched
    assert "opening    float16 NHWC default" in said
    assert not found.runs("tags.`tvmopt.stage` = 'sensitivity'")


def test_layers_are_timed_on_the_gpu(tmp_path, make_store, store, run) -> None:
    make_store(tmp_path)
    asked = ["--target=cuda", "--threads=1", "--dtypes=float16", "--sensitivity_time=12"]
    run(["flows.sensitivity", *asked], tmp_path)
    found = store(tmp_path)
    [made] = found.runs("tags.`tvmopt.stage` = 'sensitivity'")
    folder = Path(made.info.artifact_uri.removeprefix("file://"))
    with (folder / "sensitivity.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert any(float(row["latency_s"] or 0) > 0 for row in rows)
    assert "layers are not timed: target" not in made.data.tags.get("tvmopt.notes", "")


@pytest.mark.slow  # test_search.py repeats a search on the CPU
def test_a_search_goes_on_where_it_ended(searched, command, run) -> None:
    folder, _, _ = searched
    said = run(command, folder)
    assert f"gone on with: {_TRIALS} trials done" in said and "reused" in said
