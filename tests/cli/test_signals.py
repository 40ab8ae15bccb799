"""A signal at a random moment of a store's call leaves no transaction open."""

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
