"""A signal leaves no transaction of the store open, at whatever moment it arrives."""

from __future__ import annotations

_REPEATED = """
import itertools, os, random, signal
from mlflow.entities import Metric, RunTag
from tvmopt.cli import signals
from tvmopt.tracking.store.mlflow_store import open_store

client, chance = open_store(), random.Random(1)
run = client.create_run("0").info.run_id
for place in range(40):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signals._raised.clear()
    signals.end_on_signals()
    try:
        signal.signal(signal.SIGALRM, lambda number, frame: signals._end(signal.SIGTERM, frame))
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.03))
        for step in itertools.count():
            metric, tag = Metric("step", step, step, step), RunTag("step", str(step))
            client.log_batch(run, metrics=[metric], tags=[tag])
    except SystemExit as ended:
        signals.settle()
        client.set_tag(run, "place", str(place))  # as an ending command does; 'ended' holds frames
print("written")
"""


def test_the_store_can_be_written_after_a_signal(run_python, tmp_path) -> None:
    done = run_python("-c", _REPEATED, MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert done.stdout.split()[-1:] == ["written"], done.stderr


_SWALLOWED = """
import signal, time
from tvmopt.cli import signals

signals._AGAIN_S, signals._DATABASE_S = 0.05, 0.3
CALL = '''
def call():
    end = time.monotonic() + 0.02
    try:
        while time.monotonic() < end:
            pass
    except SystemExit:
        raise AssertionError("raised inside of a call")
'''
database = {"__name__": "sqlalchemy.engine", "time": time}
exec(CALL, database)

class Swallows:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

for _ in range(5):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signals._raised.clear()
    signals.end_on_signals()
    end = time.monotonic() + 2.0
    try:
        Swallows()
        while time.monotonic() < end:
            database["call"]()
            time.sleep(0.003)
        raise AssertionError("not raised again")
    except SystemExit:
        signals.settle()
print("raised")
"""


def test_a_swallowed_signal_is_raised_again_between_two_calls_of_the_store(run_python) -> None:
    done = run_python("-c", _SWALLOWED)
    assert done.stdout.split()[-1:] == ["raised"], done.stderr
