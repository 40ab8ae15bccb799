"""Compare tuning at operator granularity with tuning at subgraph granularity.

Usage: ``python -m benchmarks.granularity [--only NAMES] [--dtypes float32,int8] [--threads N]
[--topk K] [--model FILE.onnx --input_shapes S] [--runs N] [--configs N] [--tasks N] [--seconds S]
[--out FOLDER] [--json FILE]``

The script tunes each model twice with the strategy ``fast`` at equal topk, and times both libraries
interleaved. For the functions with most FLOPs it measures the same configurations of the anchor
operator alone and of the fused function. It prints Kendall's tau, the choice at each granularity,
and the regret of the operator's choice in the fused function. Tables and a scatter plot go to
MLflow and to ``--out``. The exit code is 1 when a model fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import options, peers, report
from benchmarks.cpu_int8 import read_model
from benchmarks.cpu_models import ModelFile, model_files
from benchmarks.granularity_tasks import TaskStudy, plot_studies, study_tasks
from benchmarks.interleave import interleave
from benchmarks.library import arrays_of, library_call
from benchmarks.low_precision import Model, converted, cosine

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "efficientnet_lite0", "minilm")
DTYPES = ("float32", "int8")
EXPERIMENT = "granularity"
# Minimum cosine similarity between the outputs of both libraries.
_COSINE = {"float32": 0.9999, "int8": 0.99}
_ROUNDS = 6


@dataclasses.dataclass(frozen=True)
class GranularityRow:
    """Results of one model in one dtype.

    Attributes:
        name: Name of the model.
        dtype: Dtype of the model.
        operator_ms: Median latency of each run, tuned by operator.
        subgraph_ms: Median latency of each run, tuned by subgraph.
        operator_s: Seconds of tuning by operator.
        subgraph_s: Seconds of tuning by subgraph.
        cosine: Cosine similarity between the outputs of both libraries.
        chosen: Layouts and algorithms of the layers, tuned by subgraph.
        served: Functions with a tuning record, of all functions: by operator, by subgraph.
        studies: Functions with most FLOPs, measured at both granularities.
        problem: Error of the model; empty on success.
    """

    name: str
    dtype: str
    operator_ms: tuple[float, ...] = ()
    subgraph_ms: tuple[float, ...] = ()
    operator_s: float = 0.0
    subgraph_s: float = 0.0
    cosine: float = 0.0
    chosen: str = ""
    served: tuple[str, str] = ("", "")
    studies: tuple[TaskStudy, ...] = ()
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether the outputs of both libraries agree."""
        return not self.problem and self.cosine >= _COSINE[self.dtype]

    @property
    def gain(self) -> float:
        """Speedup of subgraph over operator granularity, minus 1; the median over the runs."""
        ratios = [o / s for o, s in zip(self.operator_ms, self.subgraph_ms, strict=True)]
        return statistics.median(ratios) - 1

    @property
    def tau(self) -> float | None:
        """Median of Kendall's tau over the studied functions."""
        found = [study.tau for study in self.studies if study.tau is not None]
        return statistics.median(found) if found else None


def measure(file: ModelFile, dtype: str, args: argparse.Namespace) -> GranularityRow:
    """Tune one model at both granularities, time both libraries, and study its functions."""
    try:
        with peers.inference_mode(), tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return _measure(file, dtype, args, Path(scratch))
    except Exception as error:  # one model must not cost the others their rows
        return GranularityRow(file.name, dtype, problem=report.one_line(error))


def _measure(
    file: ModelFile, dtype: str, args: argparse.Namespace, scratch: Path
) -> GranularityRow:
    from tvmopt.device.target import resolve_target
    from tvmopt.stages.tune_layers import tune_layers
    from tvmopt.transform.lower import lower
    from tvmopt.transform.plan import free_layouts
    from tvmopt.tune import TuneOptions, create_strategy, extract_tasks

    target = resolve_target("host", args.threads)
    llvm = target.to_tvm()
    model: Model = read_model(file, args.threads)
    module = converted(model, dtype)
    free_layouts(module)
    lowered = lower(module, llvm)
    limits = TuneOptions(0, 0.0, args.threads, topk=args.topk)
    quiet = lambda *_: None  # noqa: E731

    by_operator = create_strategy("fast").tune(
        extract_tasks(lowered, llvm, "operator"), llvm, target.arch(),
        dataclasses.replace(limits, granularity="operator"), scratch / "operator", quiet,
    )  # fmt: skip
    by_subgraph = tune_layers(
        module, target, create_strategy("fast"), limits, scratch / "subgraph", quiet
    )
    calls, served = {}, []
    for name, one, result in (
        ("operator", lowered, by_operator),
        ("subgraph", by_subgraph.lowered, by_subgraph.result),
    ):
        path, counted = _built(one, target, scratch / f"{name}.so", result.database_dir)
        calls[name] = library_call(path, model.arrays)
        served.append(counted)
    same = cosine(arrays_of(calls["subgraph"]()), arrays_of(calls["operator"]()))
    runs = [interleave(calls, time_limit_s=args.seconds, rounds=_ROUNDS) for _ in range(args.runs)]
    layers = [str(choice) for choice in by_subgraph.plan.values()]
    chosen = ", ".join(f"{layers.count(k)} {k}" for k in sorted(set(layers))) or "as converted"
    return GranularityRow(
        file.name, dtype,
        tuple(run["operator"].median for run in runs),
        tuple(run["subgraph"].median for run in runs),
        by_operator.seconds, by_subgraph.result.seconds, same, chosen,
        (served[0], served[1]),
        tuple(study_tasks(lowered, target, args.configs, args.tasks)),
    )  # fmt: skip


def _built(lowered: Any, target: Any, path: Path, database_dir: Any) -> tuple[Path, str]:
    from tvmopt.build import build_library

    built = build_library(lowered, target, path, database_dir=database_dir)
    served = sum(not record.startswith("none") for record in built.records.values())
    return built.path, f"{served} of {len(built.records)}"


def table(rows: Sequence[GranularityRow]) -> str:
    """Return a Markdown table, one line per model and dtype."""
    header = (
        "model", "dtype", "operator ms", "subgraph ms", "speedup - 1", "range of runs",
        "operator s", "subgraph s", "tau", "operator records", "subgraph records", "layers",
    )  # fmt: skip
    return report.markdown(header, (_cells(row) for row in rows))


def _cells(row: GranularityRow) -> list[str]:
    if row.problem:
        return [row.name, row.dtype, f"FAILED: {row.problem[:120]}", *["-"] * 9]
    pairs = zip(row.operator_ms, row.subgraph_ms, strict=True)
    gains = sorted(o / s - 1 for o, s in pairs)
    return [
        row.name,
        row.dtype,
        f"{statistics.median(row.operator_ms):.4g}",
        f"{statistics.median(row.subgraph_ms):.4g}",
        f"{row.gain:+.1%}",
        f"{gains[0]:+.1%} to {gains[-1]:+.1%}",
        f"{row.operator_s:.0f}",
        f"{row.subgraph_s:.0f}",
        report.number(row.tau),
        *row.served,
        row.chosen,
    ]


def task_table(rows: Sequence[GranularityRow]) -> str:
    """Return a Markdown table, one line per studied function, largest regret first."""
    header = (
        "model", "dtype", "function", "calls", "configurations", "tau", "operator alone us",
        "function by operator us", "function by subgraph us", "regret", "choice by operator",
        "choice by subgraph",
    )  # fmt: skip
    studies = [(row, study) for row in rows for study in row.studies]
    studies.sort(key=lambda pair: -pair[1].regret)
    return report.markdown(header, (_study_cells(row, study) for row, study in studies))


def _study_cells(row: GranularityRow, study: TaskStudy) -> list[str]:
    o, s = study.by_operator, study.by_subgraph
    return [
        row.name, row.dtype, study.name[:40], str(study.weight), str(len(study.configs)),
        report.number(study.tau), f"{study.operator_us[o]:.1f}", f"{study.subgraph_us[o]:.1f}",
        f"{study.subgraph_us[s]:.1f}", f"{study.regret:.3f}", study.configs[o], study.configs[s],
    ]  # fmt: skip


def _study(data: dict[str, Any]) -> TaskStudy:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return TaskStudy(**values)


def read_rows(path: Path) -> list[GranularityRow]:
    """Read the rows of a file that ``--json`` wrote."""
    found = []
    data: dict[str, Any]
    for data in json.loads(path.read_text())["rows"]:
        tuples = {key: tuple(value) for key, value in data.items() if isinstance(value, list)}
        studies = tuple(_study(study) for study in data["studies"])
        known = {field.name for field in dataclasses.fields(GranularityRow)}
        values = {k: v for k, v in (data | tuples).items() if k in known}
        found.append(GranularityRow(**(values | {"studies": studies})))
    return found


def log_to_mlflow(rows: Sequence[GranularityRow], facts: dict[str, Any], folder: Path) -> str:
    """Log tables, plot and metrics as one MLflow run; return the run id."""
    import mlflow

    from tvmopt.tracking.store.mlflow_store import experiment_id, open_store

    client = open_store()
    mlflow.set_tracking_uri(client.tracking_uri)
    with mlflow.start_run(experiment_id=experiment_id(client, EXPERIMENT)) as run:
        mlflow.log_params(facts)
        for row in rows:
            if not row.problem:
                key = f"{row.name}_{row.dtype}"
                mlflow.log_metric(f"{key}_faster_by", row.gain)
                mlflow.log_metric(f"{key}_operator_ms", statistics.median(row.operator_ms))
                mlflow.log_metric(f"{key}_subgraph_ms", statistics.median(row.subgraph_ms))
        mlflow.log_artifacts(str(folder))
        return str(run.info.run_id)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = options.make_parser("granularity", __doc__, 10.0, "timing limit per run in seconds")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="dtypes, separated by commas")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs, default 5")
    parser.add_argument("--configs", type=int, default=12, help="configurations per function")
    parser.add_argument("--tasks", type=int, default=12, help="functions to study per model")
    parser.add_argument("--rows", default="", help="files of --json to merge")
    parser.add_argument("--out", default="", help="folder for the tables and the plot")
    args = options.parse(parser, arguments)
    dtypes = [dtype for dtype in args.dtypes.split(",") if dtype]
    if not dtypes or not set(dtypes) <= set(DTYPES):
        parser.error(f"--dtypes must be of {', '.join(DTYPES)}, but got {args.dtypes!r}")
    with options.errors_in_one_line(parser):
        todo = [] if args.rows else model_files(parser, args, MODELS)
    facts = report.environment(args.threads) | {"topk": args.topk, "strategy": "fast"}
    report.print_environment(facts)
    pairs = [(file, dtype) for file in todo for dtype in dtypes]
    rows = report.measure_all(
        pairs, lambda pair: measure(pair[0], pair[1], args), lambda row: f"{row.gain:+.1%}"
    )
    rows += [row for file in filter(None, args.rows.split(",")) for row in read_rows(Path(file))]
    print(f"\n{table(rows)}\n\n{task_table(rows)}")
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
        folder = Path(args.out or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "granularity.md").write_text(f"{table(rows)}\n\n{task_table(rows)}\n")
        studies = [(f"{row.name} {row.dtype}", s) for row in rows for s in row.studies]
        if studies:
            plot_studies(studies, folder / "granularity.png")
        print(f"\nMLflow run {log_to_mlflow(rows, facts, folder)}")
    return report.finish(args.json, facts, rows)


if __name__ == "__main__":
    sys.exit(main())
