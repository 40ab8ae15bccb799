"""A search through ``mlflow run``: its champion, its artifacts, and errors for wrong input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tvmopt.errors import ConfigError
from tvmopt.search.effort import Effort
from tvmopt.search.limits import HELDOUT_DROP
from tvmopt.tracking.search.entry_points import search, worker

ASKED = {
    "dtypes": "float32,int8", "strategies": "default", "layouts": "NHWC",
    "trials": 2, "sensitivity_time": 3, "repeats": 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def searched(tmp_path_factory, mlflow_run, make_store, store):
    """Return folder, store and output of a finished search over two dtypes."""
    folder = tmp_path_factory.mktemp("search")
    make_store(folder)
    done = mlflow_run(folder, "search", **ASKED)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, store(folder), done


def _parent(found):
    [parent] = found.runs("tags.`tvmopt.entry_point` = 'search'")
    return parent


def test_a_search_leaves_a_champion_and_the_evidence(searched) -> None:
    _, found, done = searched
    parent, trials = _parent(found), found.trials()
    assert parent.info.status == "FINISHED"
    assert len(trials) == 3
    assert {r.info.status for r in trials} == {"FINISHED"}
    assert {r.data.tags["mlflow.parentRunId"] for r in trials} == {parent.info.run_id}
    assert {r.data.params["dtype"] for r in trials} == {"float32", "int8"}
    for run in trials:
        effort = Effort.parse(run.data.params["effort"])
        assert run.data.params["granularity"] == effort.granularity
        assert run.data.tags["tvmopt.granularity"] == effort.granularity
    [first] = [r for r in trials if r.data.tags["tvmopt.trial"] == "1"]  # int8, which led
    assert (HELDOUT_DROP in first.data.metrics) == (first.data.metrics["accuracy_drop"] <= 0.01)
    for key in (
        "latency_ms_p50", "latency_ms_adjusted", "accuracy_drop", "speedup_vs_baseline",
        "violation", "trial_s", "tracking_s",
    ):  # fmt: skip
        assert all(key in r.data.metrics for r in trials), key
    files = {f.path for f in found.client.list_artifacts(parent.info.run_id)}
    assert files >= {
        "trials.csv", "trials.md", "space.yaml", "report.html", "pareto.png", "history.png",
    }  # fmt: skip
    note, winner = parent.data.tags["mlflow.note.content"], parent.data.tags["tvmopt.winner"]
    assert f"trial {winner}" in note and "ONNX Runtime" in note
    version = found.champion()
    assert version.tags["trial"] == winner
    assert str(version.version) == parent.data.tags["tvmopt.registered_version"]
    assert parent.data.metrics["speedup_vs_baseline"] > 0
    assert "models:/digits-cnn@champion" in done.stdout


def test_the_ui_links_a_search_to_its_versions_its_data_and_its_history(searched) -> None:
    _, found, _ = searched
    run, trials = _parent(found), found.trials()
    [used] = run.inputs.dataset_inputs
    assert used.dataset.name == "digits_eval.npz"
    assert [(tag.key, tag.value) for tag in used.tags] == [("mlflow.data.context", "search")]
    versions = found.client.search_model_versions("name='digits-cnn'")
    linked = {output.model_id for output in run.outputs.model_outputs}
    assert linked == {version.source.removeprefix("models:/") for version in versions}
    assert len(run.outputs.model_outputs) == len(linked)
    history = {
        metric: sorted(
            (m.step, m.value) for m in found.client.get_metric_history(run.info.run_id, metric)
        )
        for metric in ("trial_latency_ms", "trial_accuracy_drop", "best_latency_ms")
    }
    by_trial = {int(r.data.tags["tvmopt.trial"]): r.data.metrics for r in trials}
    del by_trial[0]  # the baseline
    assert history["trial_latency_ms"] == [
        (n, by_trial[n]["latency_ms_adjusted"]) for n in sorted(by_trial)
    ]
    assert [n for n, _ in history["trial_accuracy_drop"]] == sorted(by_trial)
    best = [ms for _, ms in history["best_latency_ms"]]
    assert best and best == sorted(best, reverse=True)


def test_stages_are_done_once_for_all_trials(searched) -> None:
    runs = searched[1].runs()
    digests = [r.data.tags["tvmopt.digest"] for r in runs if "tvmopt.digest" in r.data.tags]
    assert len(digests) == len(set(digests))


def test_the_page_needs_nothing_beside_it(searched, tmp_path) -> None:
    found = searched[1]
    path = found.client.download_artifacts(_parent(found).info.run_id, "report.html", str(tmp_path))
    text = Path(path).read_text()
    assert text.count("data:image/png;base64,") == 2
    assert "http" not in text
    assert 'class="winner"' in text


def test_a_finished_search_costs_little_to_repeat(searched, run_flow) -> None:
    folder, found, _ = searched
    before = len(found.runs())
    done = run_flow(folder, "search", **ASKED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is left to try" in done.stdout
    assert len(found.runs()) == before + 1
    [again] = found.runs("tags.`tvmopt.search_run` != ''")
    [output] = again.outputs.model_outputs
    assert output.model_id == found.champion().source.removeprefix("models:/")
    assert "best_latency_ms" in again.data.metrics


@pytest.mark.slow
def test_more_trials_go_on_with_the_same_study(searched, mlflow_run) -> None:
    folder, found, _ = searched
    done = mlflow_run(folder, "search", **{**ASKED, "trials": 3})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gone on with: 2 trials done" in done.stdout
    numbers = sorted(int(r.data.tags["tvmopt.trial"]) for r in found.trials())
    assert numbers == list(range(4))
    parents = {r.data.tags["mlflow.parentRunId"] for r in found.trials()}
    assert len(parents) == 1


@pytest.mark.slow
def test_both_granularities_are_tried_compared_and_explained(tmp_path, mlflow_run, store) -> None:
    asked = {"dtypes": "float32", "layouts": "NHWC", "strategies": "fast", "topk": 2, "repeats": 20}
    done = mlflow_run(tmp_path, "search", **asked, trials=4)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "float32 x NHWC x fast-2-operator -> fast-2: 2 choices" in done.stdout
    found = store(tmp_path)
    _, *trials = sorted(found.trials(), key=lambda r: int(r.data.tags["tvmopt.trial"]))
    by = {"operator": trials[0], "subgraph": trials[1]}
    for granularity, run in by.items():
        assert run.data.params["granularity"] == granularity
        assert "latency_ms_final" in run.data.metrics
        tune, build = (
            next(r for r in found.runs(f"tags.`tvmopt.stage` = '{stage}'")
                 if r.data.tags["mlflow.parentRunId"] == run.info.run_id)
            for stage in ("tune", "build")
        )  # fmt: skip
        assert tune.data.tags["tvmopt.granularity"] == granularity
        assert build.data.tags["tvmopt.records"].split(";")[0].endswith(f" {granularity}")
    won = found.champion().tags
    other = "subgraph" if won["granularity"] == "operator" else "operator"
    assert by[won["granularity"]].data.tags["tvmopt.trial"] == won["trial"]
    note = _parent(found).data.tags["mlflow.note.content"]
    assert f"tuned by {won['granularity']}: " in note
    assert f"; by {other} the same variant took " in note


@pytest.mark.slow
def test_the_benchmark_sets_the_champion_beside_its_peers(searched, project_env, root) -> None:
    folder, _, _ = searched
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.search_champion", "--name", "digits-cnn",
         "--threads", "1", "--seconds", "0.2",
         "--data", str(root / "tvmopt/examples/digits_eval.npz")],
        env=project_env(folder), cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    [ours] = [row for row in rows if row.startswith("champion: ")]
    [theirs] = [row for row in rows if row.startswith("ONNX Runtime float32")]
    assert " 1.00 " in ours
    assert theirs.endswith("+0.0000")


@pytest.mark.parametrize(
    ("entry", "asked", "said"),
    [
        (search, {"objectives": "size"}, "objectives must be latency, and after it"),
        (search, {"trials": 0, "time_budget": 0}, "one of trials, time_budget and patience"),
        (search, {"trials": -1}, "trials must be at least 0"),
        (search, {"dtypes": "int7"}, "dtypes must be one of"),
        (search, {"granularities": "op"}, "granularities must be one of subgraph, operator"),
        (search, {"layouts": "NWHC"}, "layouts must hold layouts such as NHWC"),
        (search, {"storage": "nowhere://x"}, "storage must be the URL of a database"),
        (search, {"max_library_mb": -1}, "max_library_mb must be at least 0"),
        (search, {"space": "/none.yaml"}, "space must be a YAML file with a mapping of"),
        (search, {"target": "diamondrapids"}, "use target=host"),
        (worker, {"study": "none-such"}, "study must be one that a search has begun"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_no_run(
    tmp_path, monkeypatch, entry, asked, said
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    with pytest.raises(ConfigError) as caught:
        entry(**asked)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "mlflow.db").exists()
