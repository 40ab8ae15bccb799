"""History of a search as metrics with steps: each trial once, in order of number."""

from __future__ import annotations

import pytest
from mlflow import MlflowClient

from tests.tracking.records import CHOICES, RECORDS, record, running
from tvmopt.tracking.search.history import BEST, DROP, LATENCY, TrialHistory


@pytest.fixture
def run(store_uri) -> tuple[MlflowClient, str]:
    client = MlflowClient(store_uri)
    found = client.get_experiment_by_name("history")
    experiment = found.experiment_id if found else client.create_experiment("history")
    return client, client.create_run(experiment).info.run_id


def _points(run, metric: str) -> list[tuple[int, float]]:
    client, run_id = run
    return sorted((m.step, m.value) for m in client.get_metric_history(run_id, metric))


def test_each_trial_is_a_step_of_its_number(run) -> None:
    history = TrialHistory(*run)
    for count in range(1, len(RECORDS) + 1):
        history.log(RECORDS[:count])
    history.log(RECORDS, all_ended=True)
    assert _points(run, LATENCY) == [(1, 1.0), (2, 0.5), (5, 0.9), (6, 0.8)]
    assert _points(run, DROP) == [(1, 0.0), (2, 0.3), (5, 0.0), (6, 0.0)]
    # Trial 2 is faster, but loses too much accuracy.
    assert _points(run, BEST) == [(1, 1.0), (2, 1.0), (5, 0.9), (6, 0.8)]


def test_a_trial_of_another_worker_holds_back_those_after_it(run) -> None:
    history = TrialHistory(*run)
    waiting, later = running(2, CHOICES[1]), record(3, CHOICES[2], 0.9)
    history.log([RECORDS[0], RECORDS[1], waiting, later])
    assert [step for step, _ in _points(run, LATENCY)] == [1]
    history.log([RECORDS[0], RECORDS[1], record(2, CHOICES[1], 0.7), later])
    assert _points(run, BEST) == [(1, 1.0), (2, 0.7), (3, 0.7)]


def test_at_the_end_nothing_is_held_back(run) -> None:
    history = TrialHistory(*run)
    history.log([running(1, CHOICES[0]), record(2, CHOICES[1], 0.7)], all_ended=True)
    assert _points(run, LATENCY) == [(2, 0.7)]
