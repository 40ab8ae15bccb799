"""Attacks by ends at any moment, and by two at once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import psutil
from mlflow import MlflowClient

from .checkout import Checkout
from .victim import network


def ended_by_a_signal(checkout: Checkout) -> str:
    """SIGTERM or SIGHUP leaves runs that say RUNNING, processes or folders."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        process = _long_work(checkout, checkout.start)
        process.send_signal(number)
        found = _left_by(checkout, process)
        if found:
            return f"{number.name}: {found}"
    return ""


def ended_mlflow_run(checkout: Checkout) -> str:
    """Where ``mlflow run`` alone is killed, the work goes on."""
    process = _long_work(checkout, checkout.start_by_mlflow)
    process.kill()
    found = _left_by(checkout, process)
    return found if "processes" in found else ""  # a run killed so is closed by the next command


def _long_work(
    checkout: Checkout, start: Callable[..., subprocess.Popen[str]]
) -> subprocess.Popen[str]:
    """Start what takes minutes; return when it has begun to work."""
    path = checkout.save(network())
    checkout.run("convert", model=path)  # makes the store
    process = start("main", model=path, name="net", threads=1, strategy="metaschedule", trials=4000)
    for _ in range(300):
        if any(path.name.startswith("tvmopt") for path in checkout.temporary.iterdir()):
            break
        time.sleep(0.2)
    time.sleep(5)
    return process


def _left_by(checkout: Checkout, process: subprocess.Popen[str]) -> str:
    """Say what a command that was told to end has left after 20 s, and end it."""
    time.sleep(20)
    members = [other for other in psutil.process_iter() if _session(other) == process.pid]
    alive = [other for other in members if other.status() != psutil.STATUS_ZOMBIE]
    if alive:
        checkout.kill(process)
    process.communicate()
    folders = [path for path in checkout.temporary.iterdir() if path.name.startswith("tvmopt")]
    client = MlflowClient(checkout.uri, checkout.uri)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(ids, "attributes.status = 'RUNNING'")
    found = {"processes": alive, "folders": folders, "runs that are RUNNING": runs}
    return ", ".join(f"{len(left)} {name}" for name, left in found.items() if left)


def _session(process: psutil.Process) -> int:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return -1


def folders_of_the_killed(checkout: Checkout) -> str:
    """Commands killed by SIGKILL leave folders that no later command removes."""
    for _ in range(2):
        process = _long_work(checkout, checkout.start)
        checkout.kill(process)
        process.communicate()
    checkout.run("convert", model=checkout.save(network()))
    left = [path.name for path in checkout.temporary.iterdir() if path.name.startswith("tvmopt")]
    return f"{len(left)} folders" if left else ""


def two_first_commands(checkout: Checkout) -> str:
    """Two commands that begin a store at once ruin each other's."""
    path = checkout.save(network())
    for _ in range(4):
        (checkout.folder / "mlflow.db").unlink(missing_ok=True)
        both = [checkout.start_by_mlflow("convert", model=path) for _ in range(2)]
        said = [process.communicate(timeout=180) for process in both]
        if any(process.returncode for process in both):
            return "one failed: " + " ".join(said[0][1].split() + said[1][1].split())[-80:]
    return ""
