"""A process killed during the schema migration of a new store leaves a usable store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

# A program that kills itself during MLflow's migrations.
_KILLED = """
import os, signal
from alembic.ddl.impl import DefaultImpl
create, left = DefaultImpl.create_table, [12]
def create_table(self, *args, **kwargs):
    create(self, *args, **kwargs)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
DefaultImpl.create_table = create_table
from tvmopt.tracking.store.mlflow_store import open_store
open_store()
"""
_NEXT = """
from tvmopt.tracking.store.mlflow_store import experiment_id, open_store
print(experiment_id(open_store(), "next"))
"""


def test_the_next_command_finds_a_store_that_works(tmp_path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    env |= {
        "PYTHONPATH": str(Path(__file__).parents[2]), "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
    }  # fmt: skip
    command = [sys.executable, "-c", _KILLED]
    killed = subprocess.run(command, env=env, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = subprocess.run(
        [sys.executable, "-c", _NEXT], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1"
