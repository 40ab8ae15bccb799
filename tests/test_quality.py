"""Run the linter and the type checker as part of the test suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _check(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def test_ruff_finds_nothing() -> None:
    _check("ruff", "check", "--no-cache", "--output-format", "concise", ".")


def test_mypy_finds_nothing() -> None:
    _check("mypy")
