"""Whole networks on a CUDA GPU: TVM's default, ours, PyTorch eager and compiled.

``python -m benchmarks.cuda_models [--only NAMES] [--contenders WHO] [--topk K] [--json FILE]
[--out FILE.md]``. Two processes a network, one for ``torch.compile``, all of which prepare side by
side (kernels and compiled networks alike take minutes). Then, alone on the GPU, one network after
the other is tuned, and timed in rounds in which contenders take turns, slow ones apart. Every
result is compared with float32 by PyTorch. Ends with 1 when ours has no time or is wrong. Needs TVM
and PyTorch, not ONNX or MLflow.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import math
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cuda_timing import in_turns
from benchmarks.report import markdown
from tvmopt.device.cuda import probe
from tvmopt.errors import TvmoptError
from tvmopt.versions import TVM_VERSION

#: Who is timed: TVM's default pipeline; the policy's first choices; the best measured; PyTorch.
CONTENDERS = ("dlight", "first", "tuned", "eager", "compiled")
_TOLERANCE = {"float32": 1e-3, "float16": 3e-2}
# Seconds of one step, from which on a process is given up.
_LIMITS = {"prepare": 300.0, "tune": 240.0, "check": 60.0, "once": 20.0}


class Worker:
    """A process with some contenders of a network; it answers each line by one of JSON.

    Args:
        name: The network.
        topk: Configurations measured a function.
        only: Contenders.
    """

    def __init__(self, name: str, topk: int, only: Sequence[str]) -> None:
        self.name, self.only = name, list(only)
        command = [
            sys.executable, "-m", "benchmarks.cuda_models_worker", name, str(topk), ",".join(only)
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, step: str) -> dict[str, Any]:
        """Let it do ``step``; what it answers, or ``{"problem": ...}``."""
        assert self._process.stdin is not None and self._process.stdout is not None
        seconds = _LIMITS[step.partition(" ")[0]]
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(step + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith("{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
        except OSError as error:
            return {"problem": f"{step}: {error}"}
        finally:
            timer.cancel()
        return {"problem": f"{step}: ended, or took more than {seconds:.0f} s"}

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class Row:
    """One network: its processes, and what was measured.

    Args:
        name: The network.
        topk: Configurations measured a function.
        only: Contenders.
    """

    def __init__(self, name: str, topk: int, only: Sequence[str]) -> None:
        self.found: dict[str, Any] = {"name": name, "errors": {}, "ms": {}, "problems": {}}
        parts = [[c for c in only if c != "compiled"], [c for c in only if c == "compiled"]]
        self._workers = [Worker(name, topk, part) for part in parts if part]

    def all(self, step: str) -> None:
        """Let every process do ``step``, side by side."""
        threads = [threading.Thread(target=self._one, args=(w, step)) for w in self._workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def time(self) -> None:
        """Check all contenders, then time them in turns."""
        for worker in list(self._workers):
            self._one(worker, "check")
        turns = [(worker, name) for worker in self._workers for name in worker.only]
        turns = [(worker, name) for worker, name in turns if name in self.found["errors"]]
        timers = {name: functools.partial(_once, worker, name) for worker, name in turns}
        rounds = in_turns(timers)
        for name, spent in rounds.items():
            spent = [ms for ms in spent if math.isfinite(ms)]
            if spent:
                self.found["ms"][name] = statistics.median(spent)
                self.found.setdefault("spread", {})[name] = [min(spent), max(spent)]

    def _one(self, worker: Worker, step: str) -> None:
        said = worker.ask(step)
        if "problem" in said:
            for name in worker.only:
                self.found["problems"].setdefault(name, said["problem"])
            self._workers.remove(worker)
            worker.close()
        for key, value in said.items():
            if isinstance(value, dict):
                self.found.setdefault(key, {}).update(value)
            else:
                self.found[key] = value

    def close(self) -> None:
        """End its processes."""
        for worker in self._workers:
            worker.close()


def _once(worker: Worker, contender: str) -> float:
    """Milliseconds of a call in one round; infinite where there is no answer."""
    return float(worker.ask(f"once {contender}").get("ms", math.inf))


def measure(names: Sequence[str], topk: int, only: Sequence[str]) -> list[dict[str, Any]]:
    """One row a network, in order."""
    begun = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - begun:.0f} s {text}", file=sys.stderr, flush=True)

    rows = [Row(name, topk, only) for name in names]
    threads = [threading.Thread(target=row.all, args=("prepare",)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("prepared")
    for row in rows:
        if topk:
            row.all("tune")
            say(f"{row.found['name']}: tuned in {row.found.get('tune_s', 0):.0f} s")
        row.time()
        row.close()
        say(f"{row.found['name']}: {row.found['ms']}")
    return [row.found for row in rows]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown table, one line a network."""
    header = (
        "network", *(f"{c} ms" for c in CONTENDERS), "ours over dlight", "over eager",
        "over compiled", "error", "kernels", "tuning s",
    )  # fmt: skip
    return markdown(header, (_cells(row) for row in rows))


def _cells(row: dict[str, Any]) -> list[str]:
    ms, errors = row["ms"], row["errors"]
    ours = min((ms[c] for c in ("first", "tuned") if c in ms), default=None)

    def over(contender: str) -> str:
        return f"{ms[contender] / ours:.3g}" if contender in ms and ours else "-"

    worst = max((errors[c] for c in ("first", "tuned") if c in errors), default=float("nan"))
    return [
        row["name"],
        *(f"{ms[c]:.4g}" if c in ms else "-" for c in CONTENDERS),
        over("dlight"), over("eager"), over("compiled"),
        f"{worst:.1e}", str(row.get("kernels", "-")),
        f"{row['tune_s']:.0f}" if "tune_s" in row else "-",
    ]  # fmt: skip


def right(row: dict[str, Any]) -> bool:
    """Whether ours was timed, and computes what PyTorch does in float32."""
    allowed = _TOLERANCE[row["name"].rpartition("-")[2]]
    ours = [c for c in ("first", "tuned") if c in row["ms"]]
    return bool(ours) and all(row["errors"][c] <= allowed for c in ours)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    from benchmarks.cuda_networks import NETWORKS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_models")
    parser.add_argument("--only", default="", help="networks by name, separated by commas")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="who is timed")
    parser.add_argument("--topk", type=int, default=0, help="configurations a function; 0: none")
    parser.add_argument("--json", default="", help="file to write the rows to")
    parser.add_argument("--out", default="", help="file to write the table to")
    args = parser.parse_args(arguments)
    names = [name for name in args.only.split(",") if name] or list(NETWORKS)
    contenders = args.contenders.split(",")
    for what, got, known in (("networks", names, NETWORKS), ("contenders", contenders, CONTENDERS)):
        unknown = [name for name in got if name not in known]
        if unknown:
            parser.error(f"{what} must be of {', '.join(known)}, but got {unknown[0]!r}")
    try:
        probe()
    except TvmoptError as error:
        parser.error(str(error))
    rows = measure(names, args.topk, contenders)
    facts = {"date": str(datetime.date.today()), "apache-tvm": TVM_VERSION, "topk": args.topk}
    facts |= next((row["versions"] for row in rows if "versions" in row), {})
    told = ", ".join(f"{key} {value}" for key, value in facts.items())
    notes = [
        f"{row['name']}: {who} failed: {why}"
        for row in rows
        for who, why in row["problems"].items()
    ]
    text = "\n".join([told, "", table(rows), "", *notes])
    if args.out:
        Path(args.out).write_text(text + "\n")
    if args.json:
        Path(args.json).write_text(json.dumps({"facts": facts, "rows": rows}, indent=1))
    print(text)
    return 0 if all(right(row) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
