"""The database server restarts during a trial: the search goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.tracking.test_search_worker import _postgresql
from tvmopt.search.budget import Budget
from tvmopt.search.effort import Effort
from tvmopt.search.space import Space
from tvmopt.search.storage import open_storage
from tvmopt.search.study import open_study
from tvmopt.tracking.search import loop as search_loop
from tvmopt.tracking.search.loop import heartbeat

SPACE = Space(("float32",), {}, ("NHWC", "NCHW"), (Effort("default"),))
AWAY_S = 5.0


def _restart(server: psutil.Process, started: list[subprocess.Popen]) -> None:
    command, folder = server.cmdline(), server.cwd()
    server.send_signal(signal.SIGINT)  # "fast shutdown": connections are cut
    server.wait(30)
    time.sleep(AWAY_S)
    user = "postgres" if os.geteuid() == 0 else None
    silent = subprocess.DEVNULL
    started.append(subprocess.Popen(command, cwd=folder, user=user, stdout=silent, stderr=silent))


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_postgresql_is_restarted_in_the_middle_of_a_trial(monkeypatch) -> None:
    monkeypatch.setattr(search_loop, "_BEAT_S", 0.2)
    budget, started = Budget(0, 0.0), []
    with _postgresql() as url:
        storage = open_storage(f"{url}/studies")
        declaration = {"space": SPACE.to_dict(), "objectives": ["latency"]}
        study = open_study(storage, "s", declaration, budget)
        [server] = [
            p for p in psutil.Process().children() if Path(p.cmdline()[0]).name == "postgres"
        ]
        with heartbeat(study):
            claimed = study.claim(lambda tried: None, budget)
            away = threading.Thread(target=_restart, args=(server, started))
            away.start()
            server.wait(30)
            claimed.finish({"p50": 1.0}, {"accuracy_drop": 0.0}, [1.0])
            away.join()
        try:
            assert [r.feasible for r in study.records()] == [True]
            assert study.worked_s() > AWAY_S  # the heartbeat survived the restart
            assert study.sweep() == []
        finally:
            storage.engine.dispose()
            for process in started:
                process.terminate()
                process.wait(30)
