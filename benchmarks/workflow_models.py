"""Run the whole workflow on the models of the zoo, and print accuracy and latency.

Usage: ``python -m benchmarks.workflow_models [--only NAMES] [--model FILE --input_shapes S]
[--threads N] [--strategy S] [--json FILE]``

The script runs the entry point ``main`` on each model, in the tracking store of the environment. It
prints one table with the speedup over ONNX Runtime and untuned TVM, measured interleaved by
``main``. The exit code is 1 when a model fails.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import io
import json
import sys
import time
from pathlib import Path

from benchmarks import options, report, zoo
from benchmarks.cpu_models import ModelFile, model_files
from tvmopt import host
from tvmopt.errors import TvmoptError
from tvmopt.versions import TVM_VERSION, installed

_METRICS = (
    "latency_ms_p50",
    "latency_ms_ci_low",
    "latency_ms_ci_high",
    "baseline_latency_ms_p50",
    "speedup_vs_baseline",
    "speedup_vs_untuned",
    "accuracy",
    "cosine",
    "max_abs_error",
    "library_bytes",
    "compile_s",
)


@dataclasses.dataclass(frozen=True)
class WorkflowRow:
    """Results of one model: whether the outcome is as expected, seconds, metrics, error."""

    name: str
    right: bool
    seconds: float
    metrics: dict[str, float]
    error: str


def run(file: ModelFile, strategy: str, threads: int) -> WorkflowRow:
    """Run the entry point ``main`` on one model."""
    from tvmopt.tracking.store.mlflow_store import open_store
    from tvmopt.workflow import main as workflow_main

    start = time.perf_counter()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = workflow_main(
                str(file.path), name=file.name, input_shapes=file.shapes,
                strategy=strategy, threads=threads,
            )  # fmt: skip
    except TvmoptError as error:
        return WorkflowRow(file.name, False, time.perf_counter() - start, {}, str(error))
    run_data = open_store().get_run(result.run_id).data
    metrics = {k: run_data.metrics[k] for k in _METRICS if k in run_data.metrics}
    return WorkflowRow(file.name, True, time.perf_counter() - start, metrics, "")


def table(rows: list[WorkflowRow]) -> str:
    """Return a Markdown table, one line per model."""
    header = (
        "model", "p50 ms", "95% interval", "ONNX Runtime p50 ms", "speedup vs ONNX Runtime",
        "speedup vs untuned TVM", "fidelity", "max abs error", "run s",
    )  # fmt: skip
    return report.markdown(header, map(_cells, rows))


def _cells(row: WorkflowRow) -> list[str]:
    m = row.metrics
    if not m:
        return [row.name, f"FAILED: {row.error[:120]}", *["-"] * 7]
    return [
        row.name,
        f"{m['latency_ms_p50']:.3g}",
        f"{m['latency_ms_ci_low']:.3g} - {m['latency_ms_ci_high']:.3g}",
        f"{m['baseline_latency_ms_p50']:.3g}",
        f"{m['speedup_vs_baseline']:.2f}",
        f"{m['speedup_vs_untuned']:.1f}",
        f"{m['accuracy']:.4f}",
        f"{m['max_abs_error']:.1e}",
        f"{row.seconds:.0f}",
    ]


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="names of models, separated by commas")
    parser.add_argument("--model", default="", help="an ONNX file instead of the zoo")
    parser.add_argument("--input_shapes", default="", help="input shapes of --model")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--strategy", default="default")
    parser.add_argument("--json", default="", help="file to write the rows to")
    args = parser.parse_args()
    with options.errors_in_one_line(parser):
        todo = model_files(parser, args, [entry.name for entry in zoo.ENTRIES])
    print(
        f"{datetime.date.today()}, {host.cpu_model()}, "
        f"{args.threads or host.usable_cores()} threads, strategy {args.strategy}, "
        f"apache-tvm {TVM_VERSION}, onnxruntime {installed('onnxruntime')}"
    )
    rows = []
    for file in todo:
        rows.append(run(file, args.strategy, args.threads))
        print(f"{file.name}: {rows[-1].error or 'ok'} ({rows[-1].seconds:.0f} s)", file=sys.stderr)
    print(f"\n{table(rows)}")
    if args.json:
        Path(args.json).write_text(json.dumps([dataclasses.asdict(r) for r in rows], indent=2))
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
