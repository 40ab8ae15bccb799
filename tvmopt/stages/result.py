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
    """

    metrics: dict[str, float]
    tags: dict[str, str]
    changed: list[str]

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2))

    @classmethod
    def read(cls, path: Path) -> StageResult:
        """Read what :meth:`write` wrote."""
        return cls(**json.loads(path.read_text()))
