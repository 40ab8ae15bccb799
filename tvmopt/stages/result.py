"""What every stage gives back, in a form that crosses a process boundary."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

Progress = Callable[[int, int, str], None]
"""Called as ``progress(done, total, text)`` while a stage works."""


@dataclasses.dataclass(frozen=True)
class StageResult:
    """Numbers and words of one stage; its files lie in the folder it was given.

    Attributes:
        metrics: Finite numbers, named as in the MLflow data model (unit in the name).
        tags: Facts in words; also why a metric could not be measured.
        changed: What the stage did, one line each.
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
