"""Compare single operators on the CPU in float32: untuned TVM, tvmopt top-1 and top-k, PyTorch.

Usage: ``python -m benchmarks.cpu_ops [--only NAMES] [--threads N] [--topk K] [--model FILE.onnx
[--input_shapes S]] [--seconds S] [--json FILE]``

The script tunes each operator without a warm start. It times untuned TVM, the top-1 configuration,
the best of ``topk`` measured configurations and every PyTorch variant (oneDNN, MKL) interleaved in
one process. ``--only`` takes names of rows or kinds; ``--model`` takes the distinct convolutions
and matmuls of a model as rows. All weights are prepacked, and convolutions include bias and relu.
Ratios are the latency of PyTorch's fastest variant divided by that of tvmopt: above 1, tvmopt is
faster. ``eager / top-k`` considers only PyTorch's documented operators. The exit code is 1 when a
result is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import options, peers, report, tuning_tasks
from benchmarks.interleave import Timing, geometric_mean, interleave
from benchmarks.library import library_call
from benchmarks.model_operators import model_operators
from benchmarks.operator_table import KINDS, built_in
from benchmarks.operators import Operator, Problem, relax_module
from benchmarks.torch_operators import dense_array

# Variants that are documented operators; the others use the prepacked weights of torch.compile.
_EAGER = ("torch:plain", "torch:linear", "torch:channels_last")
_LIMIT = 1e-4  # largest deviation from the reference, see tvmopt.compare.deviation
_UNTUNED_S = 3.0  # timing limit of untuned TVM, which is slow


@dataclasses.dataclass(frozen=True)
class Row:
    """Results of one operator.

    Attributes:
        name: Name of the operator.
        kind: One of :data:`benchmarks.operator_table.KINDS`.
        mflop: Millions of arithmetic operations.
        timings: Latency by contender: ``default``, ``top-1``, ``best``, ``torch:<variant>``.
        tuning_s: Seconds to build, check and time the configurations.
        config: Best configuration of the slowest function.
        failed: Configurations that did not build or had a wrong result.
        error: Largest deviation from PyTorch, or from untuned TVM without PyTorch.
        problem: Error of the operator; empty on success.
    """

    name: str
    kind: str
    mflop: float
    timings: dict[str, Timing] = dataclasses.field(default_factory=dict)
    tuning_s: float = 0.0
    config: str = ""
    failed: int = 0
    error: float = math.inf
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether the operator ran and the error is within the limit."""
        return not self.problem and self.error <= _LIMIT

    @property
    def torch(self) -> tuple[str, Timing] | None:
        """Name and latency of PyTorch's fastest variant."""
        forms = [(k, t) for k, t in self.timings.items() if k.startswith("torch:")]
        return min(forms, key=lambda form: form[1].median, default=None)

    @property
    def eager(self) -> float | None:
        """Latency of PyTorch's fastest documented operator divided by the top-k latency."""
        forms = [t.median for k, t in self.timings.items() if k in _EAGER]
        return min(forms) / self.timings["best"].median if forms else None

    def ratio(self, ours: str) -> float | None:
        """Latency of PyTorch's fastest variant divided by the latency of ``ours``."""
        if self.torch is None or ours not in self.timings:
            return None
        return self.torch[1].median / self.timings[ours].median


def measure(kind: str, operator: Operator, threads: int, topk: int, seconds: float) -> Row:
    """Tune one operator, check all contenders, and time them interleaved."""
    row = Row(operator.name, kind, operator.flops / 1e6)
    try:
        with peers.inference_mode(), tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return _measure(row, operator.problem(), threads, topk, seconds, Path(scratch))
    except Exception as error:  # one operator must not cost the others their rows
        return dataclasses.replace(row, problem=report.one_line(error))


def _measure(
    row: Row, problem: Problem, threads: int, topk: int, seconds: float, scratch: Path
) -> Row:
    from tvmopt.compare import deviation
    from tvmopt.device.target import resolve_target
    from tvmopt.transform.lower import lower

    target = resolve_target("host", threads)
    module = relax_module(problem)
    lowered = lower(module, target.to_tvm())
    plain = lower(module, target.to_tvm(), winograd=False)
    tuned = tuning_tasks.tuned("fast", lowered, target, scratch / "fast", topk=topk)
    ours = {
        "default": compiled(plain, target, scratch / "default.so", problem.inputs, schedule="none"),
        "top-1": compiled(lowered, target, scratch / "first.so", problem.inputs),
        "best": compiled(
            lowered, target, scratch / "best.so", problem.inputs, database_dir=tuned.database_dir
        ),
    }
    forms = problem.torch() if peers.available("torch") else {}
    results = {name: problem.restore(call()[0]) for name, call in ours.items()}
    expected = dense_array(next(iter(forms.values()))()) if forms else results["default"]
    errors = [deviation(result, expected) for result in results.values()]
    errors += [deviation(dense_array(call()), expected) for call in forms.values()]
    timings = interleave(
        ours | {f"torch:{name}": call for name, call in forms.items()},
        time_limit_s=seconds,
        budgets_s={"default": _UNTUNED_S},
    )
    return dataclasses.replace(
        row,
        timings=timings,
        tuning_s=tuned.seconds,
        config=_config(tuned),
        failed=sum(task.failures for task in tuned.tasks),
        error=max(errors),
    )


def _config(tuned: Any) -> str:
    """The configuration of the function that takes longest, with its rank in the model's order."""
    from tvmopt.kernels.emit import hint_from_dict
    from tvmopt.tune.database import read_comparisons

    if tuned.database_dir is None:
        return ""
    known = read_comparisons(tuned.database_dir).values()
    served = [(c.tuned_us, c.config) for c in known if c.tuned_us and c.config]
    if not served:
        return ""
    _, config = max(served, key=lambda pair: pair[0])
    hint = hint_from_dict(config)
    rank = next(event["rank"] for event in tuned.log if event["config_id"] == hint.config_id)
    return f"#{rank + 1} {hint}"


def compiled(
    lowered: Any, target: Any, path: Path, inputs: Sequence[np.ndarray], **how: Any
) -> peers.Call:
    """Build the module into ``path``; return a call of ``main``. ``how`` goes to build_library."""
    from tvmopt.build import build_library

    build_library(lowered, target, path, **how)
    return library_call(path, inputs)


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table, one line per operator."""
    header = (
        "operator", "MFLOP", "untuned TVM ms", "top-1 ms", "top-k ms (95%)", "PyTorch ms (95%)",
        "variant", "PyTorch / top-1", "PyTorch / top-k", "eager / top-k", "tuning s", "max error",
    )  # fmt: skip
    return report.markdown(header, (_cells(row) for row in rows))


def _cells(row: Row) -> list[str]:
    if row.problem:
        return [row.name, f"{row.mflop:.1f}", f"FAILED: {row.problem[:120]}", *["-"] * 9]
    form, torch = row.torch or ("-", None)
    return [
        row.name,
        f"{row.mflop:.1f}",
        f"{row.timings['default'].median:.4g}",
        f"{row.timings['top-1'].median:.4g}",
        str(row.timings["best"]),
        str(torch or "-"),
        form.removeprefix("torch:"),
        report.number(row.ratio("top-1")),
        report.number(row.ratio("best")),
        report.number(row.eager),
        f"{row.tuning_s:.1f}",
        f"{row.error:.1e}" + ("" if row.right else " WRONG"),
    ]


def means(rows: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    """Geometric means of both latency ratios by kind, over the rows with a correct result."""
    found: dict[str, dict[str, float | None]] = {}
    for kind in KINDS:
        some = [row for row in rows if row.kind == kind and row.right]
        if some:
            found[kind] = {
                ours: geometric_mean(r for row in some if (r := row.ratio(ours)) is not None)
                for ours in ("top-1", "best")
            }
    return found


def _rows(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[tuple[str, Operator]]:
    rows = built_in()
    if args.model:
        from tvmopt.frontend import load_onnx, parse_input_shapes, prepare

        shapes = parse_input_shapes(args.input_shapes)
        rows, left = model_operators(prepare(load_onnx(args.model), shapes).model)
        for line in left:
            print(line, file=sys.stderr)
        if not rows:
            parser.error(f"--model must hold a convolution or matmul, but {args.model!r} has none")
    kinds = dict.fromkeys(kind for kind, _ in rows)
    known = [*kinds, *(operator.name for _, operator in rows)]
    wanted = options.check_names(parser, args.only, known)
    if wanted is None:
        return rows
    return [(kind, op) for kind, op in rows if kind in wanted or op.name in wanted]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = options.make_parser("cpu_ops", __doc__, 15.0, "timing limit per row in seconds")
    args = options.parse(parser, arguments)
    with options.errors_in_one_line(parser):
        operators = _rows(parser, args)
    facts = report.environment(args.threads) | {"topk": args.topk}
    report.print_environment(facts, needed=("torch",))
    rows = report.measure_all(
        operators,
        lambda row: measure(*row, args.threads, args.topk, args.seconds),
        lambda row: f"PyTorch / top-k {report.number(row.ratio('best'))}, error {row.error:.1e}",
    )
    print(f"\n{table(rows)}\n\nLatency ratio of PyTorch to tvmopt, geometric means:")
    for kind, mean in means(rows).items():
        count = sum(row.kind == kind for row in rows)
        print(f"- {kind} ({count}): top-1 {report.number(mean['top-1'])}, "
              f"top-{args.topk} {report.number(mean['best'])}")  # fmt: skip
    return report.finish(args.json, facts, rows, geometric_means=means(rows))


if __name__ == "__main__":
    sys.exit(main())
