"""Run the commands of this folder, which print one JSON line per mutant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def judged_by(*commands: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """Run modules in parallel, each with its arguments; return their JSON records."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    running = [
        subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]  # fmt: skip
    try:
        found = [process.communicate(timeout=seconds)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    return [json.loads(line) for text in found for line in text.splitlines()]
