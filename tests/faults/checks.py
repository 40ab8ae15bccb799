"""Invariants after faults: each choice ends once, and run statuses agree with the study."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import optuna
from optuna.trial import TrialState

from tests.mlflow_runs import client_of, runs_of

# ONNX Runtime writes this file whenever it is imported.
_OF_ONNX_RUNTIME = ".ses"
_VOID = ("orphaned", "interrupted", "duplicate")


def trial_runs(uri: str) -> dict[str, str]:
    """Return the status of each trial's run by run id; no run of any kind may be RUNNING."""
    found = runs_of(client_of(uri))
    assert not [r.info.run_id for r in found if r.info.status == "RUNNING"]
    return {r.info.run_id: r.info.status for r in found if "tvmopt.trial" in r.data.tags}


def check_study(url: str, name: str, runs: dict[str, str], choices: int, killed_stages: int) -> int:
    """Check a finished study; return how many of its stages were killed.

    Args:
        url: Database of the study.
        name: Name of the study.
        runs: Result of :func:`trial_runs`; runs of the trials that count are removed from it.
        choices: Number of choices that the study must have made, including the baseline.
        killed_stages: Upper bound of trials that failed because their stage was killed.
    """
    trials = optuna.load_study(study_name=name, storage=url).get_trials()
    assert not [t.number for t in trials if t.state == TrialState.RUNNING]
    ended = [t for t in trials if t.user_attrs.get("failure_class") not in _VOID]
    failed = [t.user_attrs["failure_class"] for t in ended if t.state == TrialState.FAIL]
    assert failed == ["killed"] * len(failed)
    assert len(failed) <= killed_stages
    made = Counter(json.dumps(t.user_attrs["choice"], sort_keys=True) for t in ended)
    assert set(made.values()) == {1}, made
    assert len(made) == choices
    for trial in ended:
        status = runs.pop(trial.user_attrs["run_id"])
        ends = ("FINISHED",) if trial.state == TrialState.COMPLETE else ("FAILED", "KILLED")
        assert status in ends, trial.number
    return len(failed)


def check_folders(temporary: Path, *others: Path) -> None:
    """Check that no file is left after the last command.

    Args:
        temporary: Temporary folder of the commands; it must be empty, also of MLflow's files.
        others: Folders of stores; they must not hold temporary folders of killed commands.
    """
    left = {path.name for path in temporary.iterdir()} - {_OF_ONNX_RUNTIME}
    assert left == set(), left
    for folder in others:
        ours = [path.name for path in folder.glob(".tvmopt-*")]
        assert ours == [], ours
