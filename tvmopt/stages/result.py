"""Result of a stage, serialised between processes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

Progress = Callable[[int, int, str], None]
"""Called as ``progress(done, total, text)`` while a stage works."""


@dataclasses.dataclass(frozen=True)
class StageResult:
    """Metrics, tags and report of one stage; its files are in its output folder.

    Attributes:
        metrics: Finite numbers, named as in the MLflow data model (unit in the name).
        tags: Tags of the run; also why a metric could not be measured.
        changed: Changes made by the stage, one line each.
        series: Metrics with steps, by name: of each point the step, seconds since the stage began
            and the value. The last value of each is a metric of the stage, too.
    """

    metrics: dict[str, float]
    tags: dict[str, str]
    changed: list[str]
    series: dict[str, list[tuple[int, float, float]]] = dataclasses.field(default_factory=dict)

    @property
    def all_metrics(self) -> dict[str, float]:
        """Return the metrics, with the last value of each series."""
        return self.metrics | {name: points[-1][2] for name, points in self.series.items()}

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2))

    @classmethod
    def read(cls, path: Path) -> StageResult:
        """Read what :meth:`write` wrote."""
        return cls(**json.loads(path.read_text()))
