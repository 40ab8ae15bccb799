"""Parts of ``benchmarks.cuda_search`` that need no GPU: limits, cores, lines, rounds."""

from __future__ import annotations

import itertools
import os
import sys
import time
from types import SimpleNamespace

import pytest

from benchmarks import cuda_search, cuda_search_peer
from benchmarks.cuda_search import Steps, compared, cores_of, line_of

CHAMPION = {
    "model": "resnet50-1", "champion": "float16 NHWC default", "p50 ms": "0.4", "drop": "0.001",
    "trials": "5",
}  # fmt: skip


def _steps(folder) -> Steps:
    return Steps("m", folder, dict(os.environ), sorted(os.sched_getaffinity(0)))


@pytest.mark.slow  # waits for a limit
def test_a_step_that_takes_too_long_is_stopped_with_its_children(tmp_path, capsys):
    (tmp_path / "slow.py").write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    assert _steps(tmp_path)("slow", 3.0, "slow") == 124
    log = (tmp_path / "slow.log").read_text()
    assert "stopped after 3 s" in log
    with pytest.raises(ProcessLookupError):
        for _ in range(100):  # until init has reaped it
            os.kill(int(log.split()[0]), 0)
            time.sleep(0.05)
    assert "m: slow" in capsys.readouterr().out


def test_a_step_returns_its_exit_code(tmp_path):
    (tmp_path / "bad.py").write_text("raise SystemExit(3)\n")
    assert _steps(tmp_path)("bad", 60.0, "bad") == 3


def test_processes_with_a_gpu_each_have_separate_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(cuda_search, "_machine_gpus", lambda: 4)
    parts = [cores_of(0, 1, str(gpu)) for gpu in range(4)]
    assert [len(part) for part in parts] == [16] * 4 and len(set().union(*parts)) == 64
    assert [cores_of(gpu, 4, str(gpu)) for gpu in range(4)] == parts
    # who was given some cores keeps them
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert cores_of(0, 1, "2") == list(range(64))


def test_the_comparison_takes_the_champion_beside_torch_compile():
    facts = {"ms": 0.8, "champion_ms": 0.4, "layout": "channels_last"}
    assert compared(facts, 0.5)["torch.compile / champion"] == "2.00"
    apart = {"ms": 0.8, "layout": "contiguous", "not_beside": "it was not loaded"}
    found = compared(apart, 0.5)
    assert found["torch.compile / champion"] == "1.60" and found["note"] == "it was not loaded"


def test_a_model_has_one_line():
    facts = {"ms": 0.8, "champion_ms": 0.4, "layout": "channels_last"}
    assert line_of(CHAMPION | compared(facts, 0.5)) == (
        "resnet50-1: champion float16 NHWC default, accuracy drop 0.001, p50 0.4000 ms, 5 trials; "
        "torch.compile 0.8000 ms (channels_last), ratio 2.00"
    )
    none = {"model": "ppocr_det", "problem": "no champion: error: no trial finished"}
    assert line_of(none) == "ppocr_det: no champion: error: no trial finished"


class _Event:
    """An event of a clock that a call moves on by two milliseconds."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = _Event.now

    def elapsed_time(self, other: _Event) -> float:
        return other.at - self.at


def test_rounds_of_both_are_interleaved():
    order: list[str] = []

    def theirs() -> None:
        order.append("theirs")
        _Event.now += 2.0

    def ours() -> float:
        order.append("ours")
        return 1e-3

    cuda = SimpleNamespace(Event=_Event, synchronize=lambda: None)
    found = cuda_search_peer._side_by_side(SimpleNamespace(cuda=cuda), theirs, ours)
    assert found == {"ms": pytest.approx(2.0), "champion_ms": pytest.approx(1.0)}
    changes = sum(a != b for a, b in itertools.pairwise(order))
    assert changes == 2 * cuda_search_peer._ROUNDS - 1
    alone = cuda_search_peer._side_by_side(SimpleNamespace(cuda=cuda), theirs, None)
    assert alone.keys() == {"ms"}


def test_the_python_of_a_step_is_this_one(tmp_path):
    (tmp_path / "which.py").write_text("import sys; print(sys.executable)\n")
    assert _steps(tmp_path)("which", 60.0, "which") == 0
    assert (tmp_path / "which.log").read_text().strip() == sys.executable
