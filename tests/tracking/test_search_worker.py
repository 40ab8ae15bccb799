"""Several processes on one study: no trial is lost or repeated, on any database."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_port

LAYOUTS = ("NHWC", "NCHW", "NCHW8c")


def _search_with_workers(command, env, root, count, storage) -> None:
    """Begin a search; once its study exists, workers join it; all must succeed."""
    options = {"cwd": root, "env": env, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    first = subprocess.Popen(command, text=True, **options)
    assert first.stdout is not None
    said = []
    for line in first.stdout:
        said.append(line)
        if line.startswith("space"):
            break
    worker = [sys.executable, "-m", "flows.worker", "--study", "shared", "--storage", storage]
    others = [subprocess.Popen(worker, text=True, **options) for _ in range(count)]
    rest = first.stdout.read()
    assert first.wait(400) == 0, "".join(said) + rest
    for other in others:
        words = other.communicate(timeout=100)[0]
        assert other.returncode == 0, words
        assert "of its budget are done" in words


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_workers_join_a_study_and_double_nothing(
    tmp_path, project_env, root, store, search_command
) -> None:
    env = {**project_env(tmp_path), "PYTHONPATH": str(root)}
    storage = f"sqlite:///{tmp_path / 'studies.db'}"
    command = search_command(layouts=",".join(LAYOUTS), trials=3, study="shared", storage=storage)
    _search_with_workers(command, env, root, 2, storage)
    found = store(tmp_path)
    found.check_search(LAYOUTS)
    assert len(found.runs("tags.`tvmopt.entry_point` = 'worker'")) == 2


def _wait(ready, process) -> None:
    end = time.monotonic() + 90
    while not ready():
        assert process.poll() is None, "ended before it was ready"
        assert time.monotonic() < end, "was not ready in 90 s"
        time.sleep(0.3)


@contextmanager
def _postgresql():
    """Start PostgreSQL on loopback, and return its address; it refuses to run as root."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        pytest.skip("needs PostgreSQL (Debian: apt-get install postgresql)")
    bin_, user = programs[-1], "postgres" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="tvmopt-pg-"))
    if user:
        shutil.chown(folder, user)
    as_user = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL}
    data, port = folder / "data", str(free_port())
    subprocess.run(
        [bin_ / "initdb", "-D", data, "-U", "tvmopt", "-A", "trust"], check=True, **as_user
    )
    server = subprocess.Popen(
        [bin_ / "postgres", "-D", data, "-p", port, "-h", "127.0.0.1", "-k", folder],
        stderr=subprocess.DEVNULL, **as_user,
    )  # fmt: skip
    try:
        at = ["-h", "127.0.0.1", "-p", port, "-U", "tvmopt"]
        _wait(lambda: not subprocess.run([bin_ / "pg_isready", *at], **as_user).returncode, server)
        for name in ("runs", "studies"):
            subprocess.run([bin_ / "createdb", *at, name], check=True, **as_user)
        yield f"postgresql://tvmopt@127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _tracking_server(database: str, folder: Path, env: dict[str, str]):
    uri = f"http://127.0.0.1:{free_port()}"
    port = uri.rpartition(":")[2]
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", port,
        "--backend-store-uri", database, "--artifacts-destination", str(folder / "artifacts"),
        "--workers", "1",
    ]  # fmt: skip
    log = (folder / "server.log").open("w")
    server = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)

    def ready() -> bool:
        try:
            return urllib.request.urlopen(f"{uri}/health", timeout=2).status == 200
        except (urllib.error.URLError, OSError):
            return False

    try:
        _wait(ready, server)
        yield uri
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_workers_on_postgresql_and_a_tracking_server(
    tmp_path, project_env, root, store, search_command
) -> None:
    layouts = ("NHWC", "NCHW", "NCHW4c", "NCHW8c", "NCHW16c", "NCHW32c")
    env = {**project_env(tmp_path), "PYTHONPATH": str(root)}
    with _postgresql() as database:
        storage = f"{database}/studies"
        with _tracking_server(f"{database}/runs", tmp_path, env) as uri:
            env["MLFLOW_TRACKING_URI"] = uri
            command = search_command(
                layouts=",".join(layouts), trials=6, study="shared", storage=storage
            )
            _search_with_workers(command, env, root, 4, storage)
            found = store(uri)
            found.check_search(layouts)
            assert len(found.runs("tags.`tvmopt.entry_point` = 'worker'")) == 4
            hosts = {r.data.tags["tvmopt.pid"] for r in found.trials()}
            assert len(hosts) > 1
