"""Heartbeat of a command's run; closes runs of other machines whose heartbeat stopped.

A container or machine that is gone has no next command that could say so. Each command counts in a
tag of its run, and watches the counts of the same user's commands on other machines with its own
monotonic clock. Where a count has stood still for 90 seconds, the runs of that process are KILLED.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from tvmopt.process import SILENT_S, Process, ProcessWatch
from tvmopt.tracking.store.mlflow_store import all_experiment_ids
from tvmopt.tracking.store.orphans import close_runs, process_of, running
from tvmopt.tracking.store.runs import log_tags, user

#: Tag of a command's run: how often its process has said that it lives.
BEATS = "tvmopt.beats"
_LOOK_S = 10.0
_LOOKS_A_BEAT = 3
_ENDING_S = 5.0


@contextmanager
def heartbeat(client: MlflowClient, run_id: str) -> Iterator[None]:
    """Write a run's heartbeat, and watch the heartbeats of other machines, while the body runs."""
    ended = threading.Event()
    thread = threading.Thread(target=_beat, args=(client, run_id, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_ENDING_S)  # no longer: a store that does not answer is retried for minutes


def _beat(client: MlflowClient, run_id: str, ended: threading.Event) -> None:
    others, looks = Others(client), 0
    while True:
        with suppress(MlflowException):  # a store that is away may be there the next time
            if looks % _LOOKS_A_BEAT == 0:
                log_tags(client, run_id, {BEATS: str(looks // _LOOKS_A_BEAT)})
            if looks == 0 or others.undecided:
                others.look()
        looks += 1
        if ended.wait(_LOOK_S):
            return


class Others:
    """Commands of the same user on other machines and in other containers.

    Args:
        client: Client of the store.
        silent_s: Seconds for which a count must be seen to stand still.
    """

    def __init__(self, client: MlflowClient, silent_s: float = SILENT_S) -> None:
        self._client, self._own = client, Process.own()
        self._watch = ProcessWatch(self._own, silent_s=silent_s)
        self._first: dict[Process, str] = {}
        #: Processes that are not known yet to be alive or dead.
        self.undecided: set[Process] = set()

    def look(self) -> list[str]:
        """Read all heartbeat counters once; return the ids of the closed runs."""
        experiments, closed = all_experiment_ids(self._client), []
        found: dict[Process, str] = {}
        for run in running(self._client, experiments, BEATS, "%", "LIKE"):
            process = process_of(run.data.tags)
            if run.data.tags.get("mlflow.user") == user() and not process.shares_pids(self._own):
                found[process] = run.data.tags[BEATS]
        self.undecided &= found.keys()
        for process, beats in found.items():
            if process not in self._first:
                self._first[process] = beats
                self.undecided.add(process)
            elif beats != self._first[process]:
                self.undecided.discard(process)
            if process in self.undecided and not self._watch.is_alive(process, float(beats)):
                runs = running(self._client, experiments, "tvmopt.boot", process.boot)
                theirs = [run for run in runs if process_of(run.data.tags) == process]
                closed += close_runs(self._client, theirs)
                self.undecided.discard(process)
        return closed
