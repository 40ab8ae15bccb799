"""Compare the positions of NaN and infinities in the outputs of tvmopt and ONNX Runtime.

Usage: ``python -m benchmarks.non_finite [--only NAMES] [--model FILE.onnx --input_shapes S]
[--threads N] [--topk K] [--layouts auto,NCHW,NHWC] [--strategies none,direct,default,fast]
[--json FILE]``

The script feeds each model of the zoo with NaN, infinities, huge and subnormal values
(:mod:`tvmopt.stages.non_finite`), and prints a table of models by inputs. ``default`` and ``fast``
run the fallback for NaN outputs like the runtime does. ``direct`` is ``default`` without Winograd.

A cell is ``=`` if NaN and infinities have the same positions in all outputs, else the share of
elements that differ. It is ``~`` if the positions match another reference only: ONNX Runtime at
another optimisation level, because overflow depends on the order of a reduction, or ONNX Runtime on
the same LSTM and GRU without a bias, because it turns NaN into numbers in those with one. The exit
code is 1 when positions differ.
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
from benchmarks.cpu_models import ModelFile, model_files
from benchmarks.library import answer
from benchmarks.recurrent_bias import without_bias
from benchmarks.zoo_inputs import random_inputs

STRATEGIES = ("none", "direct", "default", "fast")
LAYOUTS = ("auto", "NCHW", "NHWC")


@dataclasses.dataclass(frozen=True)
class NonFiniteRow:
    """Results of one model in one layout with one strategy.

    Attributes:
        name: Model, layout and strategy.
        shares: Share of output elements whose class (NaN, +inf, -inf, finite) differs from ONNX
            Runtime, by input; None for an input that ONNX Runtime refuses.
        undetermined: Inputs on which the references differ, and one of them matches.
        problem: Error of the model; empty on success.
    """

    name: str
    shares: dict[str, float | None] = dataclasses.field(default_factory=dict)
    undetermined: tuple[str, ...] = ()
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether all positions match."""
        return not self.problem and not self.differs

    @property
    def differs(self) -> list[str]:
        """Inputs for which positions differ."""
        return [n for n, share in self.shares.items() if share and n not in self.undetermined]


def classes(array: np.ndarray) -> np.ndarray:
    """Classify elements: 3 for NaN, 1 for +inf, 2 for -inf, 0 for finite values."""
    if array.dtype.kind in "iub":
        return np.zeros(array.shape, np.int8)
    kinds = [np.isnan(array), np.isposinf(array), np.isneginf(array)]
    return np.select(kinds, [np.int8(3), np.int8(1), np.int8(2)], np.int8(0))


def share(got: Iterable[np.ndarray], expected: Iterable[np.ndarray]) -> float:
    """Share of elements whose :func:`classes` differ."""
    pairs = [(classes(a), classes(b)) for a, b in zip(got, expected, strict=True)]
    return sum(int((a != b).sum()) for a, b in pairs) / max(1, sum(b.size for _, b in pairs))


Exact = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]


def other_references(model: Any, folded: Any) -> list[Exact]:
    """Other references of ``model``: ONNX Runtime with basic optimisations, and without any.

    Where it loses NaN in recurrent layers with a bias, the same layers without one, too; those of
    ``folded``, the model with its constants folded.
    """
    import onnxruntime as ort

    from tvmopt.frontend.reference import loses_nan

    levels = ort.GraphOptimizationLevel

    def session(level: Any, model: Any = model) -> Exact:
        settings = ort.SessionOptions()
        settings.log_severity_level = 3
        settings.graph_optimization_level = level
        made = ort.InferenceSession(
            model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )
        return lambda inputs: made.run(None, dict(inputs))

    others = [session(level) for level in (levels.ORT_ENABLE_BASIC, levels.ORT_DISABLE_ALL)]
    if loses_nan(folded):
        others.append(session(levels.ORT_ENABLE_BASIC, without_bias(folded)))
    return others


def compare(
    name: str,
    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    exact: Exact,
    others: Sequence[Exact],
    base: Mapping[str, np.ndarray],
    floats: Sequence[str],
) -> NonFiniteRow:
    """Compare a compiled model with ONNX Runtime on planted inputs.

    Args:
        name: Name of the row.
        run: The compiled model.
        exact: ONNX Runtime.
        others: Result of :func:`other_references`.
        base: Inputs by name, in the order of the model.
        floats: Names of the inputs that get planted values.
    """
    from tvmopt.stages.non_finite import planted_inputs

    shares: dict[str, float | None] = {}
    undetermined = []
    for label, inputs in planted_inputs(base, floats):
        try:
            expected = exact(inputs)
        except Exception:  # ONNX Runtime refuses the input, so there is no reference
            shares[label] = None
            continue
        got = run(list(inputs.values()))
        shares[label] = share(got, expected)
        if shares[label] and any(share(got, other(inputs)) == 0.0 for other in others):
            undetermined.append(label)
    return NonFiniteRow(name, shares, tuple(undetermined))


def measure(
    file: ModelFile, threads: int, topk: int, layouts: Sequence[str], strategies: Sequence[str]
) -> list[NonFiniteRow]:
    """Measure one model; return a row for each layout and strategy."""
    try:
        with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return list(_measure(file, threads, topk, layouts, strategies, Path(scratch)))
    except Exception as error:  # one model must not cost the others their rows
        return [NonFiniteRow(file.name, problem=report.one_line(error))]


def _measure(
    file: ModelFile, threads: int, topk: int, layouts: Sequence[str], strategies: Sequence[str],
    scratch: Path,
) -> Iterable[NonFiniteRow]:  # fmt: skip
    from tvmopt.build import build_library
    from tvmopt.device.target import resolve_target
    from tvmopt.frontend import import_onnx, load_onnx, parse_input_shapes, prepare
    from tvmopt.frontend.reference import Reference, input_specs, working_random_inputs
    from tvmopt.stages.auto_layout import choose_layout
    from tvmopt.transform.conversion import convert_module
    from tvmopt.transform.fallback import lower_direct, wants_fallback
    from tvmopt.transform.lower import lower

    target = resolve_target("host", threads)
    prepared = prepare(load_onnx(file.path), parse_input_shapes(file.shapes))
    reference = Reference(prepared.reference, threads)
    entry = file.entry
    base = (
        random_inputs(entry, prepared.reference) if entry
        else working_random_inputs(reference, input_specs(prepared.reference), seed=0)[1]
    )  # fmt: skip
    indices = {name for name, *_ in entry.integer_ranges} if entry else set()
    floats = [n for n, array in base.items() if array.dtype.kind == "f" and n not in indices]
    base = {name: base[name] for name in prepared.input_shapes}
    others = other_references(prepared.reference, prepared.model)
    imported = import_onnx(prepared.model)
    modules: dict[str, Any] = {}
    for asked in layouts:
        layout = asked
        if asked == "auto":
            layout = choose_layout(
                lambda name: convert_module(imported, layout=name).mod, target
            ).name
        if layout in modules:
            continue
        modules[layout] = convert_module(imported, layout=layout).mod
        for strategy in strategies:
            name = f"{layout}-{strategy}"
            winograd = strategy in ("default", "fast")
            lowered = lower(modules[layout], target.to_tvm(), winograd=winograd)
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

            row = f"{file.name} {layout} {strategy}"
            yield compare(row, run, reference, others, base, floats)


def table(rows: Sequence[NonFiniteRow]) -> str:
    """Return a Markdown table of models by inputs."""
    header = list(dict.fromkeys(label for row in rows for label in row.shares))
    return report.markdown(["model", *header], [[row.name, *_cells(row, header)] for row in rows])


def _cells(row: NonFiniteRow, header: Sequence[str]) -> list[str]:
    if not row.shares:
        verdict = f"FAILED: {row.problem}"
        return [verdict, *["-"] * (len(header) - 1)]
    shown = {0.0: "=", None: "-"}
    return [
        "~" if label in row.undetermined
        else shown[found] if (found := row.shares.get(label)) in shown
        else f"{found:.2%}"
        for label in header
    ]  # fmt: skip


def _names(text: str, known: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{unknown[0]!r} must be one of {', '.join(known)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = options.make_parser("non_finite", __doc__, 0.0, "ignored")
    parser.add_argument("--layouts", default="auto", help=f"list of {', '.join(LAYOUTS)}")
    parser.add_argument("--strategies", default="default", help=f"list of {', '.join(STRATEGIES)}")
    args = options.parse(parser, arguments)
    layouts = _names(args.layouts, LAYOUTS, parser)
    strategies = _names(args.strategies, STRATEGIES, parser)
    with options.errors_in_one_line(parser):
        todo = model_files(parser, args, [entry.name for entry in zoo.ENTRIES])
    facts = report.environment(args.threads) | {"topk": args.topk}
    report.print_environment(facts, ())
    rows: list[NonFiniteRow] = []
    for file in todo:
        found = measure(file, args.threads, args.topk, layouts, strategies)
        rows += found
        for row in found:
            verdict = row.problem or ", ".join(row.differs) or "agrees"
            print(f"{row.name}: {verdict}", file=sys.stderr, flush=True)
    print(f"\n{table(rows)}")
    return report.finish(args.json, facts, rows)


if __name__ == "__main__":
    sys.exit(main())
