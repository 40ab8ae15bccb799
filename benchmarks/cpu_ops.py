"""Single operators on the CPU, float32, batch 1: ours beside PyTorch and beside TVM as it comes.

``python -m benchmarks.cpu_ops [--only NAMES] [--threads N] [--topk K] [--model FILE.onnx
[--input_shapes S]] [--seconds S] [--json FILE]`` prints one table. Each operator is tuned from
nothing; then TVM's default, the policy's first choice, the best of ``topk`` and every form that
PyTorch has (oneDNN, MKL) take turns in this process. ``--only`` takes names of rows or of kinds;
``--model`` takes the distinct convolutions and matrix products of a model for rows. Weights of all
are packed beforehand, convolutions include bias and relu. Ratios are PyTorch's time by ours, its
best form counting: above 1, ours is faster; ``eager / best`` counts its documented operators alone,
as a user calls them. Exits with 1 when a result is wrong.
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

# Forms that are PyTorch's documented operators; the others are those that torch.compile packs
# weights for.
_EAGER = ("torch:plain", "torch:linear", "torch:channels_last")
_LIMIT = 1e-4  # largest deviation from the reference, see tvmopt.compare.deviation
_UNTUNED_S = 3.0  # what TVM's default may take of a row's time


@dataclasses.dataclass(frozen=True)
class Row:
    """One operator: latencies by contender, and what tuning it came to.

    Attributes:
        name: Name of the operator.
        kind: One of :data:`benchmarks.operator_table.KINDS`.
        mflop: Millions of arithmetic operations.
        timings: By contender: ``default``, ``top-1``, ``best``, ``torch:<form>``.
        tuning_s: Seconds to build, check and time the configurations.
        config: The best one of the function that takes most of it.
        failed: Configurations that did not build or were wrong.
        error: Largest deviation of any of ours from PyTorch, or from TVM's default without it.
        problem: Why there is no row; empty when there is one.
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
        """Whether all results were right."""
        return not self.problem and self.error <= _LIMIT

    @property
    def torch(self) -> tuple[str, Timing] | None:
        """PyTorch's best form."""
        forms = [(k, t) for k, t in self.timings.items() if k.startswith("torch:")]
        return min(forms, key=lambda form: form[1].median, default=None)

    @property
    def eager(self) -> float | None:
        """Time of PyTorch's best public operator by that of our best: what a user calls."""
        forms = [t.median for k, t in self.timings.items() if k in _EAGER]
        return min(forms) / self.timings["best"].median if forms else None

    def ratio(self, ours: str) -> float | None:
        """Time of PyTorch's best form by that of ours."""
        if self.torch is None or ours not in self.timings:
            return None
        return self.torch[1].median / self.timings[ours].median


def measure(kind: str, operator: Operator, threads: int, topk: int, seconds: float) -> Row:
    """Tune one operator, check all forms of it, and time them in turns."""
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
    results = {name: problem.restore(call().numpy()) for name, call in ours.items()}
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
    """A call of the module's ``main``, built into ``path``, see ``build_library`` for ``how``."""
    from tvmopt.build import build_library

    build_library(lowered, target, path, **how)
    return library_call(path, inputs)


def table(rows: Sequence[Row]) -> str:
    """Markdown table of the rows."""
    header = (
        "shape", "MFLOP", "TVM default ms", "top-1 ms", "best ms (95%)", "PyTorch ms (95%)",
        "form", "PyTorch / top-1", "PyTorch / best", "eager / best", "tuning s", "max error",
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
    """Geometric means of both ratios by kind, over the rows that have them."""
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
            parser.error(
                f"--model must hold a convolution or matrix product, but {args.model!r} has none"
            )
    kinds = dict.fromkeys(kind for kind, _ in rows)
    known = [*kinds, *(operator.name for _, operator in rows)]
    wanted = options.check_names(parser, args.only, known)
    if wanted is None:
        return rows
    return [(kind, op) for kind, op in rows if kind in wanted or op.name in wanted]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = options.make_parser("cpu_ops", __doc__, 15.0, "most seconds of timing a row")
    args = options.parse(parser, arguments)
    with options.errors_in_one_line(parser):
        operators = _rows(parser, args)
    facts = report.environment(args.threads) | {"topk": args.topk}
    report.print_environment(facts, needed=("torch",))
    rows = report.measure_all(
        operators,
        lambda row: measure(*row, args.threads, args.topk, args.seconds),
        lambda row: f"PyTorch / best {report.number(row.ratio('best'))}, error {row.error:.1e}",
    )
    print(f"\n{table(rows)}\n\nPyTorch's time by ours, geometric means:")
    for kind, mean in means(rows).items():
        count = sum(row.kind == kind for row in rows)
        print(f"- {kind} ({count}): top-1 {report.number(mean['top-1'])}, "
              f"best of {args.topk} {report.number(mean['best'])}")  # fmt: skip
    return report.finish(args.json, facts, rows, geometric_means=means(rows))


if __name__ == "__main__":
    sys.exit(main())
