"""Compile the tests of the onnx package in forked children; compare with ONNX Runtime.

``python -m tests.onnx_cases.run [--only TEXT] [--part K/N] [--json FILE]`` prints a line per case
and a table. A case that is refused as given is tried again with its integer inputs as constants.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.fuzz.forked import CPU_SECONDS, Phase, import_all, in_child
from tests.fuzz.outcome import REFUSED, RIGHT, Outcome, judged
from tests.onnx_cases.cases import Case, node_cases, small_models
from tvmopt.compare import masked_alike

if TYPE_CHECKING:
    from tvmopt.runtime import CompiledModel

#: ONNX Runtime does not run the case.
FOREIGN = "foreign"
#: Compiled with integer inputs as constants only.
CONSTANT = "constant"
#: Right, but some of its nodes run in ONNX Runtime.
FALLBACK = "fallback"


def run_case(case: Case, phase: Phase) -> Outcome:
    """Compile one case in this process, and compare its outputs with ONNX Runtime's."""
    import onnxruntime as ort

    from tvmopt.frontend.old_opsets import at_least_opset_7

    phase("reference")
    try:
        options = ort.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        session = ort.InferenceSession(
            at_least_opset_7(case.model).SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
        )
        expected = session.run(None, case.inputs)
    except Exception as error:
        return Outcome(FOREIGN, "reference", str(error).splitlines()[0][:200])
    return judged(phase, lambda at: _compiled(case, expected, at))


def _compiled(case: Case, expected: list[Any], phase: Phase) -> tuple[str, str]:
    """Return what is wrong, and ``FALLBACK`` where not all is compiled."""
    import tvmopt

    phase("compile")
    shapes = {name: array.shape for name, array in case.inputs.items()}
    elsewhere = _Lines()
    logging.getLogger("tvmopt").addHandler(elsewhere)
    compiled = tvmopt.compile(case.model, shapes, threads=1, layout="NCHW")
    phase("run")
    wrong = _wrong(case, expected, compiled)
    if not compiled.metadata.segments:
        return wrong, ""
    return wrong, f"{FALLBACK}: {'; '.join(elsewhere.lines)}"


class _Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _wrong(case: Case, expected: list[Any], compiled: CompiledModel) -> str:
    found = list(compiled(case.inputs))
    if len(found) != len(expected):
        return f"{len(expected)} outputs, but got {len(found)}"
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        theirs = np.asarray(theirs)
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return (
                f"output {number}: {theirs.dtype}{theirs.shape}, but got {ours.dtype}{ours.shape}"
            )
        rtol, atol = max(case.rtol, 1e-3), max(case.atol, 1e-4)
        if ours.dtype.kind == "f":
            ours, theirs = masked_alike(ours, theirs)
            finite = np.abs(theirs[np.isfinite(theirs)].astype("f8"))
            atol *= max(1.0, float(finite.max(initial=0.0)))  # sums that cancel
            close = np.isclose(ours.astype("f8"), theirs.astype("f8"), rtol, atol, equal_nan=True)
        else:
            close = np.equal(ours, theirs)
        if not close.all():
            return f"output {number}: {int((~close).sum())} of {close.size} values differ"
    return ""


def outcomes(cases: Iterable[Case], seconds: float = 120.0) -> Iterator[dict[str, Any]]:
    """Yield name, outcome and reason of each case."""
    import_all()
    for case in cases:
        start = time.monotonic()
        outcome = _in_child(case, seconds)
        kind, reason = outcome.kind, outcome.text
        if kind == RIGHT and outcome.notes:
            kind, _, reason = outcome.notes.partition(": ")
        if kind in (REFUSED, FALLBACK) and (fixed := case.with_constants()) is not None:
            again = _in_child(fixed, seconds)
            if again.kind == RIGHT and not again.notes:
                kind = CONSTANT
            elif kind == REFUSED:
                kind, _, why = (again.notes or again.kind).partition(": ")
                reason = f"with constants: {again.text or why}"
        yield {
            "name": case.name,
            "kind": kind,
            "phase": outcome.phase,
            "reason": reason,
            "error": outcome.error,
            "details": outcome.details[-600:],
            "wall_s": round(time.monotonic() - start, 2),
        }


def _in_child(case: Case, seconds: float) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="tvmopt-case-") as name:
        return in_child(Path(name), lambda phase: run_case(case, phase), seconds + CPU_SECONDS)[0]


def main() -> int:
    """Run the cases; return 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names that hold one of these, with commas")
    parser.add_argument("--part", default="1/1", help="every N-th case from the K-th on: K/N")
    parser.add_argument("--json", type=Path, help="file for all outcomes")
    given = parser.parse_args()
    words = [word for word in given.only.split(",") if word]
    part, parts = map(int, given.part.split("/"))
    every = [*node_cases(), *small_models()]
    cases = [c for c in every if not words or any(word in c.name for word in words)]
    found = []
    for one in outcomes(cases[part - 1 :: parts]):
        print(f"{one['kind']:<10} {one['name']}: {one['reason'][:160]}", flush=True)
        found.append(one)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    counts = collections.Counter(one["kind"] for one in found)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
