"""A worker drops a trial that another worker claimed, in one line, and goes on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient

from tests.mlflow_runs import client_of
from tvmopt.errors import LimitError, StageFailedError
from tvmopt.process import Process
from tvmopt.search.budget import Budget
from tvmopt.search.effort import Effort
from tvmopt.search.limits import Limits
from tvmopt.search.space import Space
from tvmopt.search.storage import open_storage
from tvmopt.search.study import Clock, SearchStudy, open_study
from tvmopt.tracking.search import loop as search_loop
from tvmopt.tracking.search import trial
from tvmopt.tracking.search.loop import SPENT_TRIALS, SearchWork, work
from tvmopt.tracking.store.allowance import BUDGET_SPENT
from tvmopt.tracking.store.stage_run import Session, StageOutput

SPACE = Space(("float32",), {}, ("NHWC", "NCHW"), (Effort("default"),))
METRICS = {
    "latency_ms_p50": 1.0, "accuracy_drop": 0.0, "speedup_vs_baseline": 2.0,
    trial.REFERENCE_MS: 2.0,
}  # fmt: skip
STAGES = [StageOutput("stage", "digest", "run", Path(), METRICS, False)] * 4


_REQUEST = SimpleNamespace(name="m", target=SimpleNamespace(gpu=None))


class Worker:
    """A worker whose stages run the actions in ``ends``, one after the other."""

    def __init__(self, client: MlflowClient, folder: Path, monkeypatch) -> None:
        self.client = client
        experiment = client.create_experiment(str(folder))
        parent = self.client.create_run(experiment).info.run_id
        session = Session(self.client, experiment, parent, {}, True, folder, 1)
        storage, budget = open_storage(f"sqlite:///{folder / 'studies.db'}"), Budget(2, 0.0)
        declaration = {"space": SPACE.to_dict(), "objectives": ["latency"]}
        self.study = open_study(storage, "s", declaration, budget)
        # Another machine that finds this worker silent at its second check.
        clone = dataclasses.replace(Process.own(), boot="another boot")
        self.now = 0.0
        self.other = SearchStudy(storage, "s", clone, Clock(lambda: 0.0, lambda: self.now), 5.0)
        self.job = SearchWork(
            session, _REQUEST, self.study, budget, 0.0, Limits(0.01),
            ("latency",), 0.0, 0.0, 0, parent,
        )  # fmt: skip
        self.ends: list[Exception | None] = []
        self.said: list[str] = []
        monkeypatch.setattr(trial, "request_for", lambda request, choice, _: request)
        monkeypatch.setattr(trial, "_stages", self._stages)
        monkeypatch.setattr(search_loop, "say", self.said.append)

    def _stages(self, session: Session, request: object) -> list[StageOutput]:
        if not self.ends:
            return STAGES
        end = self.ends.pop(0)
        self.other.sweep()
        self.now += 6.0
        assert len(self.other.sweep()) == 1  # another worker claims the trial
        if end is not None:
            raise end
        return STAGES


@pytest.fixture(scope="module")
def client(store_uri) -> MlflowClient:
    return client_of(store_uri)


@pytest.fixture
def worker(client, tmp_path, monkeypatch) -> Worker:
    return Worker(client, tmp_path, monkeypatch)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "end",
    [None, StageFailedError("it crashed"), LimitError("spent", BUDGET_SPENT), LimitError("slow")],
    ids=["finished", "failed", "spent", "timeout"],
)
def test_a_worker_whose_trial_was_taken_goes_on(worker, end) -> None:
    worker.ends = [end]
    assert work(worker.job) == SPENT_TRIALS.format(2)
    dropped = [line for line in worker.said if "DROPPED" in line]
    assert len(dropped) == 1
    assert "trial 0 was given to another worker; its result is dropped" in dropped[0]
    records = worker.study.records()
    assert [(r.state, r.failure) for r in records] == [
        ("failed", "orphaned"), *[("finished", "")] * 3,
    ]  # fmt: skip
    runs = [worker.client.get_run(r.run_id) for r in records]
    assert [r.info.status for r in runs] == ["KILLED", *["FINISHED"] * 3]
    assert runs[0].data.tags["tvmopt.failure_class"] == "taken"
    assert "\n" not in runs[0].data.tags["tvmopt.error"]


def test_an_interrupt_is_not_swallowed_with_the_trial(worker) -> None:
    worker.ends = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        work(worker.job)
    [record] = worker.study.records()
    assert worker.client.get_run(record.run_id).info.status == "KILLED"
