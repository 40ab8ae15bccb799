"""Run a search with stages that sleep, and inject faults at random: ``FOLDER SEED FAULTS``.

Runs, claims, heartbeats, locks and the database are real. Each search is a fork of this process, so
that MLflow is imported once; each stage is a process. Prints JSON: the count of each fault, and the
seconds taken.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from flows.unexpected import explain, hide_tracebacks
from tests.faults.refusal import refuse
from tvmopt.errors import StageFailedError, TvmoptError
from tvmopt.search.budget import Budget
from tvmopt.search.declared import Declared
from tvmopt.search.effort import Effort
from tvmopt.search.limits import Limits
from tvmopt.search.space import Space
from tvmopt.search.storage import open_storage
from tvmopt.search.study import open_study
from tvmopt.tracking.search import entry_points as search_module
from tvmopt.tracking.search import trial
from tvmopt.tracking.search.ending import Ending
from tvmopt.tracking.search.loop import SearchWork
from tvmopt.tracking.store.command import command
from tvmopt.tracking.store.exclusive import alone
from tvmopt.tracking.store.runs import open_run
from tvmopt.tracking.store.stage_run import Session, StageOutput

SPACE = Space(("float32",), {}, tuple(f"NCHW{n}c" for n in range(2, 8)), (Effort("default"),))
SEARCHES = 2
#: Errors that the disk of both databases injects for a while.
REFUSALS = {
    "the disk fails": errno.EIO, "the disk is full": errno.ENOSPC,
    "the disk is read-only": errno.EROFS,
}  # fmt: skip
FAULTS = (
    "kill the group", "kill one process", "terminate", "hang up", "stop for a while", *REFUSALS,
)  # fmt: skip
_STAGE_S, _STOP_S, _PATIENCE_S = 0.05, 0.3, 60.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)
_METRICS = {
    "latency_ms_p50": 1.0, "accuracy_drop": 0.0, "speedup_vs_baseline": 2.0,
    trial.REFERENCE_MS: 2.0,
}  # fmt: skip


def studies(folder: Path) -> str:
    """Return the URL of the study database."""
    return f"sqlite:///{folder / 'disk' / 'studies.db'}"


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _stages(session: Session, request: object) -> list[StageOutput]:
    """Run one stage instead of four, in its own process and run."""
    with open_run(
        session.client, session.experiment, "stage", {}, {}, parent=session.run_id
    ) as run_id:
        done = subprocess.run(["sleep", str(_STAGE_S)], preexec_fn=_die_with_parent, check=False)
        if done.returncode:
            raise StageFailedError(f"the stage was ended by {-done.returncode}", "killed")
    return [StageOutput("stage", "digest", run_id, Path(), _METRICS, False)] * 4


def _finish(session: Session, request: object, study: object, limits: Limits, why: str) -> Ending:
    return Ending(0, True, "1", True, (why,), why, 1.0, 2.0, (), study.ended_trials(), ())


def search(folder: Path, name: str) -> None:
    """Do what ``tvmopt.tracking.search.entry_points.search`` does, without a model."""
    trial._stages = _stages
    trial.request_for = lambda request, choice, _: request
    search_module.finish_search, search_module.leave_report = _finish, lambda *args: ""
    budget = Budget(0, 0.0)
    with command("search", "stub", {"study": name}) as session:
        storage = open_storage(studies(folder))
        with alone(f"the beginning of {name}"):
            declaration = {"space": SPACE.to_dict(), "objectives": ["latency"]}
            study = open_study(storage, name, declaration, budget)
        request = SimpleNamespace(name="stub", target=SimpleNamespace(gpu=None))
        job = SearchWork(
            session, request, study, budget, 0.0, Limits(0.01), ("latency",),
            0.0, 0.0, 0, session.run_id,
        )  # fmt: skip
        search_module._search(job, Declared())


def _prepare(folder: Path) -> None:
    with command("search", "stub", {}):
        open_storage(studies(folder))


def _fork(function: Callable[..., None], folder: Path, *args: str) -> int:
    """Call ``function`` in its own process and session; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        with (folder / "log.txt").open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        function(folder, *args)
        code = 0
    except TvmoptError as error:  # as the entry points do
        print("error:", error)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        print("error:", explain(error))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int) -> int:
    """Wait for the end of a search; return its exit status."""
    end = time.monotonic() + _PATIENCE_S
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.killpg(pid, signal.SIGKILL)
            raise TimeoutError(f"a search did not end in {_PATIENCE_S} s")
        time.sleep(0.01)
    return ended[1]


def _make(fault: str, pid: int, chance: random.Random) -> bool:
    """Inject a fault; return whether it ended the search."""
    tree = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    if fault in REFUSALS:
        flag = Path(os.environ["REFUSE_FLAG"])
        refuse(flag, REFUSALS[fault])
        time.sleep(_STOP_S)
        flag.unlink()
        return False
    if fault == "stop for a while":
        os.killpg(pid, signal.SIGSTOP)
        time.sleep(_STOP_S)
        os.killpg(pid, signal.SIGCONT)
        return False
    if fault == "kill one process":
        victim = chance.choice(tree)
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:  # the stage has just ended
            return False
        return victim == pid
    if fault == "kill the group":
        os.killpg(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGTERM if fault == "terminate" else signal.SIGHUP)
    return True


def main(folder: Path, seed: int, faults: int) -> None:
    """Run searches until enough faults were injected, then one without faults."""
    chance, made, began = random.Random(seed), collections.Counter(), time.monotonic()
    hide_tracebacks()
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans of a killed search become ours
    _wait(_fork(_prepare, folder))
    names, living = ["study-0"], {}
    for place in range(SEARCHES):
        living[place] = _fork(search, folder, names[-1])
    while sum(made.values()) < faults:
        time.sleep(chance.uniform(0.05, 0.8))
        place = chance.randrange(SEARCHES)
        pid, ended = living[place], False
        done, status = os.waitpid(pid, os.WNOHANG)
        if done and status == 0:  # the search has ended
            names.append(f"study-{len(names)}")
        elif not done:
            fault = FAULTS[sum(made.values()) % len(FAULTS)]
            ended = _make(fault, pid, chance)
            made[fault] += 1
            if not ended:
                continue
            _wait(pid)
        living[place] = _fork(search, folder, names[-1])
    for pid in living.values():
        _wait(pid)
    for name in names:
        assert _wait(_fork(search, folder, name)) == 0, name
    children = psutil.Process().children(recursive=True)
    left = [p.cmdline() for p in children if p.status() != psutil.STATUS_ZOMBIE]
    took = time.monotonic() - began
    print(json.dumps({"faults": made, "studies": names, "left": left, "seconds": took}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
