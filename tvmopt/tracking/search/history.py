"""History of a search as metrics with steps, which MLflow's UI draws while the search runs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from mlflow import MlflowClient

from tvmopt.search.records import ADJUSTED, Record
from tvmopt.search.tried import FINISHED, RUNNING
from tvmopt.tracking.store.runs import log_series

LATENCY, BEST, DROP = "trial_latency_ms", "best_latency_ms", "trial_accuracy_drop"


class TrialHistory:
    """Metrics of a search's run; the step is the trial number, and no trial is logged twice.

    Trials are logged by number. A trial that still runs in another worker holds back those after
    it, so that the best latency never rises. The baseline is left out: it may be a hundred times
    slower, and the lines would be flat.

    Args:
        client: Client of the tracking store.
        run_id: Run of the search, which no other process logs to.
    """

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._next = 0
        self._best = math.inf

    def log(self, records: Sequence[Record], *, all_ended: bool = False) -> None:
        """Log the trials that have ended since the last call.

        Args:
            records: All trials of the study.
            all_ended: Whether the search has ended: trials that still run hold nothing back.
        """
        now = time.monotonic()
        series: dict[str, list[tuple[int, float, float]]] = {LATENCY: [], BEST: [], DROP: []}
        for record in sorted(records, key=lambda r: r.number):
            if record.number < self._next:
                continue
            if record.state == RUNNING and not all_ended:
                break
            self._next = record.number + 1
            if record.state != FINISHED or record.is_baseline:
                continue
            latency_ms = record.metrics[ADJUSTED]
            if record.feasible:
                self._best = min(self._best, latency_ms)
            series[LATENCY].append((record.number, now, latency_ms))
            series[DROP].append((record.number, now, record.metrics["accuracy_drop"]))
            if self._best < math.inf:
                series[BEST].append((record.number, now, self._best))
        log_series(self._client, self._run_id, series)
