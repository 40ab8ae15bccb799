"""Imports the compiler once and forks for each mutant: a crash, a hang or a bomb ends one child.

``python -m tests.fuzz.server FIRST LAST --seed S --whole SHARE`` prints one JSON line a mutant.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.fuzz.mutants import Mutant, mutant
from tests.fuzz.outcome import CRASH, GOOD, LIMIT, PARENT, Outcome, judge

#: Limits of one mutant, as ``stage_timeout`` and ``memory_limit`` would be.
SECONDS, MEGABYTES = 30.0, 2500.0
#: Phases in the process of the command itself; what ends there, by whatever, ends the command.
_OF_THE_PARENT = ("", "request")
_ADDRESS_SPACE = 24 << 30
_LOOK_S = 0.01
_IMPORTS = (
    "onnxruntime", "tvm.relax.frontend.onnx", "tvm.s_tir.meta_schedule", "tvmopt.runtime",
    "tvmopt.stages.build", "tvmopt.stages.convert", "tvmopt.stages.tune", "tvmopt.tracking.request",
    "tvmopt.tune", "tvmopt.tune.convergence", "tvmopt.tune.regret", "tvmopt.tune.report",
    "tvm.relax.backend.cpu_generic.pipeline",
)  # fmt: skip


def run(
    numbers: range, seed: int, whole: float, seconds: float = SECONDS, keep: Path | None = None
) -> Iterator[dict]:
    """Judge each mutant in a child; gives its record.

    Args:
        numbers: Which mutants.
        seed: Of which series.
        whole: Share that is compiled; the others are loaded, prepared and imported.
        seconds: Most time for one mutant.
        keep: Folder that gets the files of those whose outcome is none of the good ones.
    """
    _import_all()
    for number in numbers:
        wanted = random.Random(f"whole {seed}/{number}").random() < whole
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tvmopt-fuzz-") as name:
            folder = Path(name)
            for part in ("model", "out"):
                (folder / part).mkdir()
            outcome, used = _in_child(number, seed, folder, wanted, seconds)
            one = json.loads(_read(folder / "story") or "{}")
            if outcome.kind not in GOOD and keep is not None:
                kept = keep / f"{seed}-{number}"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(folder / "model", kept)
                shutil.copyfile(folder / "log", kept / "log.txt")
        yield {
            "number": number, "seed": seed, "whole": wanted, **dataclasses.asdict(outcome),
            "wall_s": round(time.monotonic() - start, 3), "cpu_s": round(used, 3),
            **one,
        }  # fmt: skip


def _import_all() -> None:
    """Import what the children need; no thread may be started here."""
    for name in _IMPORTS:
        importlib.import_module(name)
    from tvmopt.arch.target import resolve_target

    resolve_target("host", 1).to_tvm()


def _write(one: Mutant, folder: Path) -> Path:
    path = folder / "model" / "mutant.onnx"
    path.write_bytes(one.content)
    for name, content in one.files.items():
        (path.parent / name).write_bytes(content)
    words = {"story": one.story, "shapes": one.input_shapes}
    (folder / "story").write_text(json.dumps(words))
    return path


def _in_child(
    number: int, seed: int, folder: Path, whole: bool, seconds: float
) -> tuple[Outcome, float]:
    pid = os.fork()
    if not pid:
        _child(number, seed, folder, whole)
    start = time.monotonic()
    stopped = ""
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - start > seconds:
            stopped = f"it had not ended after {seconds:.0f} s"
        elif (used := _resident_mb(pid)) > MEGABYTES:
            stopped = f"it used {used:.0f} MB of memory"
        if stopped:
            os.killpg(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            break
        time.sleep(_LOOK_S)
    phase = _read(folder / "phase")
    cpu_s = usage.ru_utime + usage.ru_stime
    if stopped:
        return Outcome(PARENT if phase in _OF_THE_PARENT else LIMIT, phase, stopped), cpu_s
    if result := _read(folder / "result"):
        return Outcome(**json.loads(result)), cpu_s
    code = os.waitstatus_to_exitcode(status)
    text = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    log = _read(folder / "log")[-1500:]
    return Outcome(PARENT if phase in _OF_THE_PARENT else CRASH, phase, text, details=log), cpu_s


def _child(number: int, seed: int, folder: Path, whole: bool) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder / "out")
        one = mutant(number, seed)
        path = _write(one, folder)

        def at(phase: str) -> None:
            (folder / "phase").write_text(phase)

        outcome = judge(path, one.input_shapes, folder / "out", at, whole=whole)
        text = json.dumps(dataclasses.asdict(outcome))
        (folder / "partial").write_text(text)
        (folder / "partial").rename(folder / "result")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _resident_mb(pid: int) -> float:
    try:
        return psutil.Process(pid).memory_info().rss / 1e6
    except psutil.Error:
        return 0.0


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def table(records: list[dict]) -> str:
    """How many of each outcome by phase, and what they took."""
    counts = collections.Counter((r["kind"], r["phase"]) for r in records)
    lines = [f"{kind:10} {phase:8} {n:6}" for (kind, phase), n in sorted(counts.items())]
    cpu, wall = (sum(r[key] for r in records) for key in ("cpu_s", "wall_s"))
    lines.append(f"{len(records)} mutants, {cpu:.0f} s of CPU, {wall:.0f} s")
    return "\n".join(lines)


def main() -> int:
    """Judge a range of mutants; exit code 1 where an outcome is none of the good ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole", type=float, default=1.0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    records = []
    numbers = range(given.first, given.last)
    for record in run(numbers, given.seed, given.whole, given.seconds, given.keep):
        print(json.dumps(record), flush=True)
        records.append(record)
    print(table(records), file=sys.stderr)
    return int(any(r["kind"] not in GOOD for r in records))


if __name__ == "__main__":
    sys.exit(main())
