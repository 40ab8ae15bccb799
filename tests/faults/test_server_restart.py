"""The tracking server is killed and restarted during a search: the search goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.mlflow_runs import client_of, runs_of
from tests.ports import free_port
from tests.tracking.test_search_worker import _wait

from .checks import check_study, trial_runs
from .test_real_search import LAYOUTS, ROOT, _command

AWAY_S = 5.0


class Server:
    """A tracking server on loopback.

    Args:
        folder: Folder of the database, the artifacts and the log.
        env: Environment of the server.
    """

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder, self._env, self._port = folder, env, free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1",
            "--port", str(self._port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self._folder / 'server.db'}",
            "--artifacts-destination", str(self._folder / "artifacts"),
        ]  # fmt: skip
        log = (self._folder / "server.log").open("a")
        self._process = subprocess.Popen(
            command, env=self._env, cwd=self._folder, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        _wait(self._answers, self._process)

    def kill(self) -> None:
        """Kill the server with all its workers."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def _answers(self) -> bool:
        import requests

        try:
            return requests.get(f"{self.uri}/health", timeout=2).status_code == 200
        except requests.RequestException:
            return False


def _finished(uri: str) -> int:
    """Return how many trials have finished."""
    finished = runs_of(client_of(uri), "attributes.status = 'FINISHED'")
    return sum("tvmopt.trial" in r.data.tags for r in finished)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_search_outlives_a_restart_of_the_tracking_server(tmp_path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "TVM_"))}
    env |= {"PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = Server(tmp_path, env)
    server.start()
    storage = f"sqlite:///{tmp_path / 'studies.db'}"
    command = [*_command("restarted"), "--storage", storage]
    log = (tmp_path / "search.log").open("w")
    search = subprocess.Popen(
        command, env={**env, "MLFLOW_TRACKING_URI": server.uri}, cwd=ROOT, stdout=log, stderr=log
    )
    try:
        while _finished(server.uri) < 2:  # the baseline and a trial
            assert search.poll() is None, (tmp_path / "search.log").read_text()
            time.sleep(0.2)
        server.kill()
        time.sleep(AWAY_S)
        server.start()
        assert search.wait(900) == 0, (tmp_path / "search.log").read_text()
        assert "Traceback" not in (tmp_path / "search.log").read_text()
        runs = trial_runs(server.uri)
        assert check_study(storage, "restarted", runs, len(LAYOUTS) + 1, 0) == 0
        assert runs == {}
    finally:
        search.kill()
        search.wait()
        server.kill()
