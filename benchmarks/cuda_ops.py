"""The fast tuner on a CUDA GPU, operator by operator, beside TVM's default and PyTorch.

``python -m benchmarks.cuda_ops [--only ROWS] [--topk K] [--json FILE] [--out FILE.md]`` tunes each
row of the fast-tuning table, then times, in one process a row and in turns: dlight's default
schedule, the policy's first choice, the best of ``topk``, and PyTorch (cuBLAS, cuDNN). Every result
is checked against a reference of float64 or float32. Ends with 1 when a row fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import markdown
from tvmopt.versions import TVM_VERSION

# Largest error allowed, relative to the largest value of the result.
_TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "int32": 0.0}
_CONTENDERS = ("dlight", "first", "best", "torch")
_ROW_S = 300.0


@dataclasses.dataclass(frozen=True)
class OpRow:
    """What was measured of one operator.

    Attributes:
        name: The row's name.
        group: What bar it belongs to.
        ms: Median milliseconds, by contender.
        spread: Least and most of a round, by contender.
        errors: Largest relative error, by contender.
        seconds: Seconds of choosing, building, checking and timing ``topk`` configurations.
        seed_seconds: What the proposal's table has.
        measured: Configurations that were built and right, of those tried.
        config: The best configuration.
        problems: Contenders that failed, and why.
        problem: Why there is no row; empty when there is one.
    """

    name: str
    group: str = ""
    ms: dict[str, float] = dataclasses.field(default_factory=dict)
    spread: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    seed_seconds: float = 0.0
    measured: str = ""
    config: str = ""
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""

    def ratio(self, contender: str, of: str = "best") -> float | None:
        """How many times as fast ``of`` is as ``contender``; None where one has no time."""
        if contender not in self.ms or of not in self.ms:
            return None
        return self.ms[contender] / self.ms[of]

    @property
    def right(self) -> bool:
        """Whether the best was timed and its result is right."""
        allowed = _TOLERANCE[_out_dtype(self.name)]
        return not self.problem and self.errors.get("best", math.inf) <= allowed


def _out_dtype(name: str) -> str:
    dtype = name.rpartition("-")[2]
    return "int32" if dtype == "int8" else dtype


def measure(name: str, topk: int, measurer: Any, arch: Any) -> OpRow:
    """Tune one row and time its contenders; what goes wrong is told in the row."""
    from benchmarks.cuda_rows import row as row_of

    row = row_of(name)
    try:
        with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return _measure(row, topk, measurer, arch, Path(scratch))
    except Exception as error:  # one row must not cost the others theirs
        text = str(error).strip().splitlines() or [type(error).__name__]
        return OpRow(name, row.group, problem=text[-1][:300])


def _measure(row: Any, topk: int, measurer: Any, arch: Any, scratch: Path) -> OpRow:
    from benchmarks.cuda_rows import default_dlight
    from tvmopt.cuda.modules import embed_cubins
    from tvmopt.link import link_options
    from tvmopt.measure.hints import Candidates, argument_types, best_of
    from tvmopt.policy import DefaultPolicy
    from tvmopt.schedule.gpu.apply import build_kernels, gpu_kernel

    start = time.perf_counter()
    policy = DefaultPolicy(row.func, arch)
    configs = policy.emit_config(topk)
    if not configs:
        return OpRow(row.name, row.group, problem=f"no configuration: {policy.reason}")
    [tried] = measurer.measure([Candidates(row.func, configs)])
    seconds = time.perf_counter() - start
    best = best_of(tried)
    if best is None:
        reasons = sorted({m.error or "" for m in tried})
        return OpRow(row.name, row.group, problem=f"all {len(tried)} failed: {reasons[0]}")

    libraries, problems = {}, {}
    kernels = {
        "dlight": lambda: default_dlight(row.func, arch.to_tvm()),
        "first": lambda: gpu_kernel(row.func, configs[0]),
        "best": lambda: gpu_kernel(row.func, best.hint),
    }
    for contender, make in kernels.items():
        path = scratch / f"{contender}.so"
        try:
            with embed_cubins(arch):
                build_kernels({"main": make()}, arch).export_library(str(path), **link_options())
            libraries[contender] = str(path)
        except Exception as error:
            problems[contender] = str(error).strip().splitlines()[-1][:200]
    request = {
        "row": row.name, "arguments": argument_types(row.func), "libraries": libraries,
    }  # fmt: skip
    found = _in_child(request, scratch)
    right = sum(m.latency_us is not None for m in tried)
    return OpRow(
        row.name, row.group, found["ms"], found["spread"], found["errors"], seconds, row.seconds,
        f"{right} of {len(tried)}", str(best.hint), problems | found["problems"],
    )  # fmt: skip


def _in_child(request: dict[str, Any], scratch: Path) -> dict[str, Any]:
    file = scratch / "request.json"
    file.write_text(json.dumps(request))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cuda_timing", str(file)],
        capture_output=True, text=True, timeout=_ROW_S, check=False,
    )  # fmt: skip
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise RuntimeError(f"timing ended with {done.returncode}: {lines[-1][:250]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(rows: Sequence[OpRow]) -> str:
    """Markdown table, one line an operator."""
    header = (
        "operator", "default dlight ms", "first choice ms", "best ms", "PyTorch ms",
        "over dlight", "over PyTorch", "first over best", "tuning s", "seed's s", "error",
        "right", "configuration",
    )  # fmt: skip
    return markdown(header, (_cells(row) for row in rows))


def _cells(row: OpRow) -> list[str]:
    if row.problem:
        return [row.name, f"FAILED: {row.problem}", *["-"] * 11]
    return [
        row.name,
        *(_number(row.ms.get(contender)) for contender in _CONTENDERS),
        _number(row.ratio("dlight")),
        _number(row.ratio("torch")),
        _number(row.ratio("first")),
        f"{row.seconds:.1f}",
        f"{row.seed_seconds:.1f}" if row.seed_seconds else "-",
        f"{row.errors.get('best', math.inf):.1e}",
        row.measured,
        row.config,
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def summary(rows: Sequence[OpRow]) -> list[str]:
    """The bars, one line each."""
    done = [row for row in rows if not row.problem]
    lines = [
        f"right: {sum(row.right for row in rows)} of {len(rows)}",
        f"over default dlight: {_mean(row.ratio('dlight') for row in done)}",
        f"tuning: {sum(row.seconds for row in done):.0f} s in all; over the seed's seconds: "
        + (", ".join(r.name for r in done if r.seed_seconds and r.seconds > r.seed_seconds) or "-"),
        f"first choice over the best: {_mean(row.ratio('first') for row in done)}",
    ]
    for group in dict.fromkeys(row.group for row in done):
        of = [row for row in done if row.group == group]
        lines.append(
            f"{group}: over PyTorch {_mean(row.ratio('torch') for row in of)}, first over best "
            f"{_mean(row.ratio('first') for row in of)}"
        )
    for row in done:
        lines += [f"{row.name}: {who} failed: {why}" for who, why in row.problems.items()]
    return lines


def _mean(ratios: Iterable[float | None]) -> str:
    found = [ratio for ratio in ratios if ratio]
    if not found:
        return "-"
    mean = math.exp(sum(map(math.log, found)) / len(found))
    return f"{mean:.3g} (geometric mean of {len(found)}, {min(found):.3g} to {max(found):.3g})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    from benchmarks.cuda_rows import SEED_ROWS
    from benchmarks.cuda_rows import row as row_of
    from tvmopt.arch.cuda import probe
    from tvmopt.errors import TvmoptError
    from tvmopt.measure.cuda_hints import CudaMeasurer

    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_ops")
    parser.add_argument("--only", default="", help="rows by name, separated by commas")
    parser.add_argument("--topk", type=int, default=20, help="configurations measured a row")
    parser.add_argument("--json", default="", help="file to write the rows to")
    parser.add_argument("--out", default="", help="file to write the table to")
    args = parser.parse_args(arguments)
    names = [name for name in args.only.split(",") if name] or list(SEED_ROWS)
    try:
        arch = probe()
        for name in names:
            row_of(name)
    except (TvmoptError, ValueError) as error:
        parser.error(str(error))
    facts = {
        "date": str(datetime.date.today()), "gpu": arch.name, "topk": args.topk,
        "apache-tvm": TVM_VERSION, "L2": "warm: every call reads the same arguments",
    }  # fmt: skip
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch,
        CudaMeasurer(arch, Path(scratch)) as measurer,
    ):
        measurer.start()
        for number, name in enumerate(names, start=1):
            row = measure(name, args.topk, measurer, arch)
            rows.append(row)
            said = row.problem or f"{_number(row.ratio('torch'))} of PyTorch"
            print(f"{number}/{len(names)} {name}: {said}", file=sys.stderr, flush=True)
    text = "\n".join([table(rows), "", *summary(rows)])
    print(f"\n{text}")
    if args.out:
        Path(args.out).write_text(text + "\n")
    if args.json:
        data = {"facts": facts, "rows": [dataclasses.asdict(row) for row in rows]}
        Path(args.json).write_text(json.dumps(data, indent=1))
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
