"""Held-out samples refuse a leading trial when it ends, and the search tries other choices."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow import MlflowClient

from tests.tracking.records import CHOICES, FAST, record
from tvmopt.errors import LimitError
from tvmopt.search.limits import HELDOUT_DROP
from tvmopt.search.records import Record
from tvmopt.search.space import BASELINE, Choice, Variant
from tvmopt.tracking.search import leader
from tvmopt.tracking.search.entry_points import search

INT8 = Choice(Variant("int8", "", "NHWC"), CHOICES[0].effort)
EXACT = Choice(Variant("float32", "", "NHWC"), CHOICES[0].effort)


def _judged(one: Record) -> Record:
    return replace(one, metrics={**one.metrics, HELDOUT_DROP: 0.0})


@pytest.mark.parametrize(
    ("choice", "before", "expected"),
    [
        (INT8, [], True),
        (INT8, [record(1, EXACT, 3.0)], True),
        (INT8, [record(1, EXACT, 1.0)], False),
        (INT8, [record(1, EXACT, 1.0, drop=0.3)], True),  # which is not feasible
        (INT8, [record(0, BASELINE, 1.0)], True),
        (EXACT, [], False),  # loses nothing
        (BASELINE, [], False),
        # judged at another effort, or in another layout
        (replace(INT8, effort=FAST), [_judged(record(1, INT8, 3.0))], False),
        (replace(INT8, variant=replace(INT8.variant, layout="NCHW")),
         [_judged(record(1, INT8, 3.0))], False),
        (replace(INT8, variant=replace(INT8.variant, skip_layers="0")),
         [_judged(record(1, INT8, 3.0))], True),
    ],
)  # fmt: skip
def test_which_trials_are_judged(choice: Choice, before: list[Record], expected: bool) -> None:
    assert leader.leads(choice, 2.0, before) is expected


def test_a_refused_leader_is_not_tuned_and_the_next_choice_wins(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(leader, "heldout_accuracy", lambda *given: SimpleNamespace(drop=0.05))
    result = search(
        dtypes="float32,int8", strategies="default,fast", granularities="subgraph", topk="2",
        layouts="NHWC", trials=4, repeats=20, sensitivity_time=3.0,
    )  # fmt: skip
    assert result.ending.promoted
    client = MlflowClient()
    champion = client.get_model_version_by_alias("digits-cnn", "champion")
    trials = _trials(client)
    refused = [run for run in trials if HELDOUT_DROP in run.data.metrics]
    assert refused and all(run.data.params["dtype"] == "int8" for run in refused)
    assert {run.data.tags["tvmopt.feasible"] for run in refused} == {"false"}
    assert (
        "heldout_accuracy_drop 400% over its limit" in refused[0].data.tags["mlflow.note.content"]
    )
    kept = {(run.data.params["dtype"], run.data.params["skip_layers"]) for run in refused}
    tuned = [run.data.params for run in trials if run.data.params["strategy"] == "fast"]
    assert tuned and not kept & {(one["dtype"], one["skip_layers"]) for one in tuned}
    assert champion.tags["trial"] not in {run.data.tags["tvmopt.trial"] for run in refused}


def _trials(client: MlflowClient) -> list[Any]:
    found = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return [run for run in found if run.data.tags.get("tvmopt.trial", "0") != "0"]


def test_time_that_ends_before_leaves_it_to_the_promotion(monkeypatch, tmp_path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "model.json").write_text("{}")
    monkeypatch.setattr(leader.ModelMetadata, "read", lambda bundle: None)
    spent = LimitError("the search has spent its time_budget")

    def allow() -> None:
        raise spent

    facts = {"client": None, "work_dir": tmp_path, "run_id": "r"}
    session: Any = SimpleNamespace(**facts, allow=allow, say=lambda text: None)
    request: Any = SimpleNamespace(data=None, board=None, asked=SimpleNamespace(metric=None))
    stage: Any = SimpleNamespace(folder=tmp_path)
    assert leader.measure_heldout_drop(session, request, stage, stage) == {}
