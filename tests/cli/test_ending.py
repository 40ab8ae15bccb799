"""A command that is signalled, or loses its ``mlflow run``, closes its run and cleans up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.mlflow_runs import client_of, runs_of
from tvmopt.cli import command_line

ROOT = Path(__file__).parents[2]
_NEXT = """
from tvmopt.tracking.store.command import command
with command("test", "next", {}):
    pass
"""


@pytest.fixture
def place(tmp_path, make_store):
    """Make a folder with a store, and an environment of commands with default signal handlers."""
    # nohup ignores SIGHUP, and a shell in whose background the tests run ignores SIGINT.
    before = {
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "TVM_"))}
    (tmp_path / "tmp").mkdir()
    uri = make_store(tmp_path)
    yield tmp_path, uri, {
        **kept, "MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true",
        "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]]),
    }  # fmt: skip
    for number, handler in before.items():
        signal.signal(number, handler)


def _wait_until_a_stage_runs(uri, process, folder):
    end = time.monotonic() + 240
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        if list((folder / "tmp").glob("tvmopt-*/*/*.log")):
            return
        time.sleep(0.1)
    raise AssertionError("no stage was seen")


def _wait_until_gone(family):
    _gone, alive = psutil.wait_procs(family, timeout=120)
    assert not alive


@pytest.mark.parametrize(
    "numbers",
    [
        # This line also comes from ``mlflow run``: see below. SIGHUP has the same handler, and
        # ``test_a_signal_that_becomes_another_error_ends_the_command`` tests its exit code.
        pytest.param([signal.SIGTERM], marks=pytest.mark.slow),
        pytest.param([signal.SIGHUP], marks=pytest.mark.slow),
        [signal.SIGINT, signal.SIGINT, signal.SIGTERM],
    ],
)
def test_a_signal_ends_a_command_cleanly(place, numbers):
    """A second signal does not interrupt the clean-up of the first."""
    folder, uri, env = place
    command = [sys.executable, "-m", "flows.convert", "--threads", "1"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    _wait_until_a_stage_runs(uri, process, folder)
    family = psutil.Process(process.pid).children(recursive=True)
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.05)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 128 + numbers[0], said
    assert "Traceback" not in said
    _wait_until_gone(family)
    assert {run.info.status for run in runs_of(client_of(uri))} == {"KILLED"}
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP],
)
def test_the_work_ends_with_mlflow_run(place, number):
    folder, uri, env = place
    command = [sys.executable, "-m", "mlflow", "run", str(ROOT), "-e", "convert"]
    command += ["--env-manager", "local", "-P", "threads=1"]
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    _wait_until_a_stage_runs(uri, process, folder)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)  # only to mlflow run
    _wait_until_gone(family)
    process.communicate(timeout=120)
    assert {run.info.status for run in runs_of(client_of(uri))} == {"KILLED"}
    assert list((folder / "tmp").glob("tvmopt-*")) == []


_SWALLOWED = """
import os, signal, sys, time
from tvmopt.cli import command_line

class Swallows:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)

def pull(**values):
    Swallows()
    print("swallowed", flush=True)
    try:
        time.sleep(60)
    finally:
        time.sleep(2.5)  # longer than the time after which it is looked at again
        print("closed", flush=True)

sys.argv = ["pull", "--name", "m"]
command_line.run("pull", lambda: pull)
"""


def test_a_signal_whose_exception_is_swallowed_ends_the_command_all_the_same(run_python):
    began = time.monotonic()
    done = run_python("-c", _SWALLOWED)
    assert done.stdout.split() == ["swallowed", "closed"]
    assert done.returncode == 143, done.stderr
    assert time.monotonic() - began < 30


_TURNED = """
import os, signal, sys
from tvmopt.cli import command_line

signal.signal(signal.{name}, signal.SIG_DFL)  # nohup and a shell's background jobs ignore some

def find():
    try:
        os.kill(os.getpid(), signal.{name})
    except BaseException:
        raise ImportError("initialization failed")  # as an extension module does

sys.argv = ["pull", "--name", "m"]
command_line.run("pull", find)
"""


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("SIGTERM", 143, ""), ("SIGHUP", 129, ""), ("SIGINT", 130, "interrupted\n")],
)
def test_a_signal_that_becomes_another_error_ends_the_command(
    name, code, said, run_python, tmp_path
):
    done = run_python("-c", _TURNED.format(name=name), TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (code, said)
    assert list(tmp_path.iterdir()) == []  # no report of an error


@pytest.mark.slow  # tests/tracking/test_orphans.py has the rule
@pytest.mark.parametrize("through", ["python", pytest.param("mlflow run", marks=pytest.mark.slow)])
def test_the_next_command_closes_runs_left_by_kill_9(place, through):
    folder, uri, env = place
    command = [sys.executable, "-m", "flows.convert", "--threads", "1"]
    if through == "mlflow run":
        command = [sys.executable, "-m", "mlflow", "run", str(ROOT), "-e", "convert"]
        command += ["--env-manager", "local", "-P", "threads=1"]
    output = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
    _wait_until_a_stage_runs(uri, process, folder)
    family = [process_ := psutil.Process(process.pid), *process_.children(recursive=True)]
    [flow] = [p for p in family if p.cmdline()[1:3] == ["-m", "flows.convert"]]
    flow.kill()
    _wait_until_gone(family[1:])
    process.wait(240)
    left, closed = ("RUNNING", "KILLED") if through == "python" else ("FAILED", "FAILED")
    # MLflow sets the status by the exit code.
    assert [run.info.status for run in runs_of(client_of(uri))] == [left]
    subprocess.run([sys.executable, "-c", _NEXT], cwd=folder, env=env, check=True)
    assert {run.info.status for run in runs_of(client_of(uri))} == {"FINISHED", closed}
    assert list((folder / "tmp").glob("*tvmopt-*")) == []


@pytest.fixture
def said(monkeypatch, capsys):
    """Run an entry point that fails with an error; return its exit code and output lines."""

    def run(error, *argv):
        def fail(**_values):
            raise error

        monkeypatch.setattr("sys.argv", ["pull", "--name", "m", *argv])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as exited:
            command_line.run("pull", lambda: fail)
        assert exited.value.code == 1
        return capsys.readouterr().err.splitlines()

    return run


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free space there, or set TMPDIR"),
        (errno.EROFS, "give a folder that can be written to"),
        (errno.EIO, "set TVMOPT_DEBUG=1"),
        (errno.EACCES, "give a folder that this user may use"),
    ],
)
def test_an_error_of_the_operating_system_is_one_line(said, number, words):
    [line] = said(OSError(number, os.strerror(number), "/some/file"))
    assert line.startswith("error: the system refused to go on: ")
    assert "'/some/file'" in line
    assert words in line


def test_a_store_that_is_down_is_one_line_without_its_password(said, monkeypatch):
    import requests
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import OperationalError

    uri = "postgresql://bob:s3cr3t@db/runs"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for error in (
        MlflowException(f"API request to {uri} failed\nand more"),
        OperationalError("select", {}, Exception(f"no route to {uri}")),
        requests.ConnectionError(f"{uri} refused"),
    ):
        [line] = said(error)
        assert line.startswith("error: the tracking store 'postgresql://bob:***@db/runs' must")
        assert "s3cr3t" not in line


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("RESOURCE_DOES_NOT_EXIST", "No Run with id=17 exists"),
        ("INVALID_PARAMETER_VALUE", "'value' exceeds the maximum length of 8000 characters"),
        ("PERMISSION_DENIED", "no"),
    ],
)
def test_what_the_store_refuses_is_not_called_down(said, code, text):
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import ErrorCode

    [line] = said(MlflowException(text, error_code=ErrorCode.Value(code)))
    assert "the tracking store 'sqlite:" in line
    assert f"refused ({code}): {text}; check the parameters, MLFLOW_RUN_ID" in line
    assert "start it" not in line


def test_any_other_error_is_one_line_and_the_traceback_is_kept(said, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    [line] = said(ZeroDivisionError("division\nby zero"))
    assert line.startswith("error: unexpected error: ZeroDivisionError: division; the traceback")
    [kept] = tmp_path.glob("tvmopt-error-*.txt")
    assert str(kept) in line
    assert "ZeroDivisionError: division" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_debug_prints_the_traceback(said, monkeypatch):
    monkeypatch.setenv("TVMOPT_DEBUG", "0")  # so that the fixture restores it
    lines = said(ZeroDivisionError("no"), "--debug")
    assert lines[0].startswith("Traceback")
