"""Where NaN and infinities are in the outputs: each model of the zoo beside ONNX Runtime.

``python -m benchmarks.non_finite [--only NAMES] [--model FILE.onnx --input_shapes S] [--threads N]
[--topk K] [--layouts auto,NCHW,NHWC] [--strategies direct,default,fast] [--json FILE]`` feeds each
compiled model with NaN, infinities, huge and subnormal values (:mod:`tvmopt.stages.non_finite`) and
prints a table of models by inputs. ``default`` and ``fast`` call what the runtime calls where an
output holds NaN; ``direct`` is ``default`` without Winograd convolutions.

A cell has ``=`` where NaN and infinities are at the same places of all outputs, else the share of
the elements where they are not. It has ``~`` where ONNX Runtime's own places depend on its level of
optimisation, and ours are those of another level: where a sum overflows depends on its order. A
model that must fail passes where it is refused with one of our errors. Exits with 1 when a place
differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import options, report, tuning_tasks, zoo
from benchmarks.cpu_models import Job, jobs
from benchmarks.library import answer
from benchmarks.zoo_inputs import random_inputs

STRATEGIES = ("none", "direct", "default", "fast")
LAYOUTS = ("auto", "NCHW", "NHWC")


@dataclasses.dataclass(frozen=True)
class Row:
    """One model, compiled one way.

    Attributes:
        name: The model, its layout and the strategy.
        shares: By words for the input, the share of elements of all outputs where NaN or an
            infinity is not where ONNX Runtime has it; None where ONNX Runtime refuses the input.
        undetermined: Words for the inputs where ONNX Runtime differs from itself, and ours is as it
            is at another level of optimisation.
        refused: Why the model cannot be compiled, where that must be so.
        problem: Why there is no row; empty when there is one.
    """

    name: str
    shares: dict[str, float | None] = dataclasses.field(default_factory=dict)
    undetermined: tuple[str, ...] = ()
    refused: str = ""
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether all places agree, or the model is refused as it must be."""
        return not self.problem and not self.differs

    @property
    def differs(self) -> list[str]:
        """Words for the inputs where places differ."""
        return [w for w, part in self.shares.items() if part and w not in self.undetermined]


def places(array: np.ndarray) -> np.ndarray:
    """3 where an element is NaN, 1 and 2 where it is +inf and -inf, else 0."""
    if array.dtype.kind in "iub":
        return np.zeros(array.shape, np.int8)
    kinds = [np.isnan(array), np.isposinf(array), np.isneginf(array)]
    return np.select(kinds, [np.int8(3), np.int8(1), np.int8(2)], np.int8(0))


def share(got: Iterable[np.ndarray], wanted: Iterable[np.ndarray]) -> float:
    """The share of elements whose :func:`places` differ."""
    pairs = [(places(a), places(b)) for a, b in zip(got, wanted, strict=True)]
    return sum(int((a != b).sum()) for a, b in pairs) / max(1, sum(b.size for _, b in pairs))


Exact = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]


def other_levels(model: Any) -> list[Exact]:
    """ONNX Runtime on ``model`` with basic optimisations, and with none."""
    import onnxruntime as ort

    levels = ort.GraphOptimizationLevel

    def session(level: Any) -> Exact:
        settings = ort.SessionOptions()
        settings.log_severity_level = 3
        settings.graph_optimization_level = level
        made = ort.InferenceSession(
            model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )
        return lambda inputs: made.run(None, dict(inputs))

    return [session(level) for level in (levels.ORT_ENABLE_BASIC, levels.ORT_DISABLE_ALL)]


def compare(
    name: str,
    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    exact: Exact,
    others: Sequence[Exact],
    base: Mapping[str, np.ndarray],
    floats: Sequence[str],
) -> Row:
    """The row of a compiled model.

    Args:
        name: Of the row.
        run: The compiled model.
        exact: ONNX Runtime.
        others: :func:`other_levels`.
        base: Inputs by name, in the order of the model.
        floats: Names of the inputs to plant values in.
    """
    from tvmopt.stages.non_finite import planted_inputs

    shares: dict[str, float | None] = {}
    undetermined = []
    for words, inputs in planted_inputs(base, floats):
        try:
            wanted = exact(inputs)
        except Exception:  # ONNX Runtime refuses such an input, so there is nothing to follow
            shares[words] = None
            continue
        got = run(list(inputs.values()))
        shares[words] = share(got, wanted)
        if shares[words] and any(share(got, other(inputs)) == 0.0 for other in others):
            undetermined.append(words)
    return Row(name, shares, tuple(undetermined))


def measure(
    job: Job, threads: int, topk: int, layouts: Sequence[str], strategies: Sequence[str]
) -> list[Row]:
    """A row for each layout and strategy of one model."""
    from tvmopt.errors import TvmoptError

    must_fail = job.entry is not None and job.entry.status == "must_fail"
    try:
        with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            rows = list(_measure(job, threads, topk, layouts, strategies, Path(scratch)))
    except Exception as error:  # one model must not cost the others their rows
        said = report.one_line(error)
        if must_fail and isinstance(error, TvmoptError):
            return [Row(job.name, refused=said)]
        return [Row(job.name, problem=said)]
    return [Row(job.name, problem="compiled, but must be refused")] if must_fail else rows


def _measure(
    job: Job, threads: int, topk: int, layouts: Sequence[str], strategies: Sequence[str],
    scratch: Path,
) -> Iterable[Row]:  # fmt: skip
    from tvmopt.build import build_library
    from tvmopt.device.target import resolve_target
    from tvmopt.frontend import import_onnx, load_onnx, parse_input_shapes, prepare
    from tvmopt.frontend.reference import Reference, input_specs, working_random_inputs
    from tvmopt.stages.auto_layout import choose_layout
    from tvmopt.transform.conversion import convert_module
    from tvmopt.transform.fallback import lower_direct, wants_fallback
    from tvmopt.transform.lower import lower

    target = resolve_target("host", threads)
    prepared = prepare(load_onnx(job.path), parse_input_shapes(job.shapes))
    reference = Reference(prepared.reference, threads)
    entry = job.entry
    base = (
        random_inputs(entry, prepared.reference) if entry
        else working_random_inputs(reference, input_specs(prepared.reference), seed=0)[1]
    )  # fmt: skip
    indices = {name for name, *_ in entry.integer_ranges} if entry else set()
    floats = [n for n, array in base.items() if array.dtype.kind == "f" and n not in indices]
    base = {name: base[name] for name in prepared.input_shapes}
    others = other_levels(prepared.reference)
    imported = import_onnx(prepared.model)
    modules: dict[str, Any] = {}
    for asked in layouts:
        layout = asked
        if asked == "auto":
            layout = choose_layout(lambda way: convert_module(imported, layout=way).mod, target)
        if layout in modules:
            continue
        modules[layout] = convert_module(imported, layout=layout).mod
        for strategy in strategies:
            name = f"{layout}-{strategy}"
            tiles = strategy in ("default", "fast")
            lowered = lower(modules[layout], target.to_tvm(), winograd=tiles)
            database = None
            if strategy == "fast":
                tuned = tuning_tasks.tuned("fast", lowered, target, scratch / name, topk=topk)
                database = tuned.database_dir
            schedule = "none" if strategy == "none" else "default"
            direct = None
            if wants_fallback(lowered):
                direct = lower_direct(modules[layout], target.to_tvm(), {})
            built = build_library(
                lowered, target, scratch / f"{name}.so",
                database_dir=database, schedule=schedule, direct=direct,
            )  # fmt: skip

            def run(arrays: Sequence[np.ndarray], path: Path = built.path) -> list[np.ndarray]:
                return answer(path, arrays)

            row = f"{job.name} {layout} {strategy}"
            yield compare(row, run, reference, others, base, floats)


def table(rows: Sequence[Row]) -> str:
    """Markdown table of models by inputs."""
    header = list(dict.fromkeys(words for row in rows for words in row.shares))
    return report.markdown(["model", *header], [[row.name, *_cells(row, header)] for row in rows])


def _cells(row: Row, header: Sequence[str]) -> list[str]:
    if not row.shares:
        said = f"refused: {row.refused}" if row.refused else f"FAILED: {row.problem}"
        return [said, *["-"] * (len(header) - 1)]
    shown = {0.0: "=", None: "-"}
    return [
        "~" if words in row.undetermined
        else shown[found] if (found := row.shares.get(words)) in shown
        else f"{found:.2%}"
        for words in header
    ]  # fmt: skip


def _words(text: str, known: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if wrong := [word for word in words if word not in known]:
        parser.error(f"{wrong[0]!r} must be one of {', '.join(known)}")
    return words


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = options.make_parser("non_finite", __doc__, 0.0, "not used")
    parser.add_argument("--layouts", default="auto", help=f"of {', '.join(LAYOUTS)}")
    parser.add_argument("--strategies", default="default", help=f"of {', '.join(STRATEGIES)}")
    args = options.parse(parser, arguments)
    layouts = _words(args.layouts, LAYOUTS, parser)
    strategies = _words(args.strategies, STRATEGIES, parser)
    with options.errors_in_one_line(parser):
        todo = jobs(parser, args, [entry.name for entry in zoo.ENTRIES])
    facts = report.environment(args.threads) | {"topk": args.topk}
    report.print_environment(facts, ())
    rows: list[Row] = []
    for job in todo:
        found = measure(job, args.threads, args.topk, layouts, strategies)
        rows += found
        for row in found:
            told = row.problem or row.refused or ", ".join(row.differs) or "agrees"
            print(f"{row.name}: {told}", file=sys.stderr, flush=True)
    print(f"\n{table(rows)}")
    return report.finish(args.json, facts, rows)


if __name__ == "__main__":
    sys.exit(main())
