"""Console output: one line per step, and progress bars on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm


def say(text: str = "") -> None:
    """Print one line at once."""
    tqdm.write(text, file=sys.stdout)
    sys.stdout.flush()


class StageBar:
    """A progress bar for one stage; shown only on a terminal."""

    def __init__(self, stage: str) -> None:
        self._bar = tqdm(
            desc=stage, total=1, leave=False, file=sys.stderr, disable=not sys.stderr.isatty()
        )

    def __call__(self, done: int, total: int, text: str) -> None:
        """Show progress ``done`` of ``total``."""
        self._bar.total = max(total, 1)
        self._bar.n = done
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.refresh()

    def __enter__(self) -> StageBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
