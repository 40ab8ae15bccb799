"""Whole networks on a CUDA GPU: TVM's default, ours, PyTorch eager and compiled.

``python -m benchmarks.cuda_models [--only NAMES] [--topk K] [--json FILE] [--out FILE.md]``. One
process a network, which all prepare side by side (kernels and ``torch.compile`` alike take
minutes), and then tune and time one after the other, alone on the GPU, all contenders in turns.
Every result is compared with float32 by PyTorch. Ends with 1 when a network has no time or is
wrong. Needs TVM and PyTorch, not ONNX or MLflow.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import markdown
from tvmopt.versions import TVM_VERSION

#: Who is timed: TVM's default pipeline; the policy's first choices; the best measured; PyTorch.
CONTENDERS = ("dlight", "first", "tuned", "eager", "compiled")
_TOLERANCE = {"float32": 1e-3, "float16": 3e-2}


class Worker:
    """The process of one network; it is told each step by a line and answers by one.

    Args:
        name: The network.
        topk: Configurations measured a function; 0 leaves tuning out.
        only: Contenders.
    """

    def __init__(self, name: str, topk: int, only: Sequence[str]) -> None:
        self.name = name
        command = [
            sys.executable, "-m", "benchmarks.cuda_models_worker", name, str(topk), ",".join(only)
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, step: str, seconds: float) -> dict[str, Any]:
        """Let it do ``step``; what it answers, or ``{"problem": ...}``."""
        assert self._process.stdin is not None and self._process.stdout is not None
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


def measure(names: Sequence[str], topk: int, only: Sequence[str]) -> list[dict[str, Any]]:
    """One row a network, in order."""
    begun = time.perf_counter()
    workers = [Worker(name, topk, only) for name in names]
    rows: list[dict[str, Any]] = [{} for _ in names]

    def prepare(number: int) -> None:
        rows[number] |= workers[number].ask("prepare", 400.0)

    threads = [threading.Thread(target=prepare, args=(number,)) for number in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"prepared after {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    for step in ("tune", "time") if topk else ("time",):
        for row, worker in zip(rows, workers, strict=True):
            if "problem" not in row:
                row |= worker.ask(step, 240.0)
                at = time.perf_counter() - begun
                said = row.get("problem") or row.get("ms") or f"{row.get('tune_s', 0):.0f} s"
                print(f"{at:.0f} s {step} {worker.name}: {said}", file=sys.stderr, flush=True)
    for row, worker in zip(rows, workers, strict=True):
        row["name"] = worker.name
        worker.close()
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown table, one line a network."""
    header = (
        "network", *(f"{c} ms" for c in CONTENDERS), "ours over dlight", "over eager",
        "over compiled", "error", "kernels", "tuning s",
    )  # fmt: skip
    return markdown(header, (_cells(row) for row in rows))


def _cells(row: dict[str, Any]) -> list[str]:
    if "ms" not in row:
        return [row["name"], f"FAILED: {row.get('problem')}", *["-"] * (len(CONTENDERS) + 5)]
    ms, errors = row["ms"], row["errors"]
    ours = min(ms[c] for c in ("first", "tuned") if c in ms) if "first" in ms else None

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
    ours = [c for c in ("first", "tuned") if c in row.get("ms", {})]
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
    unknown = [name for name in names if name not in NETWORKS]
    if unknown:
        parser.error(f"networks must be of {', '.join(NETWORKS)}, but got {unknown[0]!r}")
    rows = measure(names, args.topk, args.contenders.split(","))
    facts = {"date": str(datetime.date.today()), "apache-tvm": TVM_VERSION, "topk": args.topk}
    facts |= next((row["versions"] for row in rows if "versions" in row), {})
    told = ", ".join(f"{key} {value}" for key, value in facts.items())
    notes = [
        f"{row['name']}: {who} failed: {why}"
        for row in rows
        for who, why in row.get("problems", {}).items()
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
