"""Strategy ``none``: TVM's own pipeline, the baseline for comparisons."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tvm.target import Target

from tvmopt.device.arch import Arch
from tvmopt.tune.base import Progress, TuneOptions, TuneResult, TuneStrategy, without_trials
from tvmopt.tune.default import untuned
from tvmopt.tune.tasks import Task


class NoneStrategy(TuneStrategy):
    """Strategy without schedules, measurement and database."""

    name = "none"

    def tune(
        self,
        tasks: Sequence[Task],
        target: Target,
        arch: Arch,
        options: TuneOptions,
        work_dir: Path,
        progress: Progress,
    ) -> TuneResult:
        """List the tasks; TVM's pipeline schedules each of them."""
        start = time.perf_counter()
        rows = tuple(untuned(task, "none:baseline") for task in tasks)
        progress(len(rows), len(rows), "left to TVM's own pipeline")
        return without_trials(self.name, rows, start)
