"""Call compiled models with wild values: each call answers, or is refused in one line.

``python -m tests.fuzz.calls [--only WORDS] [--part K/N]`` compiles those node tests of the onnx
package that take integers or whose operator turns numbers into places, and calls each with the ends
of its types, values out of every range, NaN and infinities. A crash, a hang or a traceback is a
fault: the command prints it as JSON and exits with 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.forked import Phase, import_all, in_child, report
from tests.fuzz.outcome import Outcome, is_clear, judged
from tests.onnx_cases.cases import Case, node_cases

_CALLS = 18
_LEFT_OUT = ("_expanded", "_loop")  # the same operators again; as many iterations as a call says
_PLACES = ("grid", "roi", "deform", "resize", "unpool", "upsample")
_FLOATS = ((np.nan, np.inf, -np.inf), (3e38, -1e30, 1e9, -1e9), (0.0, -0.0, 5.0, -5.0, 0.5))


def run(cases: Iterable[Case]) -> Iterator[dict[str, Any]]:
    """Call each case in a child; yield its record."""
    import_all()
    for case in cases:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tvmopt-calls-") as name:
            outcome, used = in_child(Path(name), lambda phase, case=case: _outcome(case, phase))
        yield {
            "name": case.name, **dataclasses.asdict(outcome), "cpu_s": round(used, 2),
            "wall_s": round(time.monotonic() - start, 2),
        }  # fmt: skip


def hostile_cases(words: Iterable[str] = ()) -> Iterator[Case]:
    """Yield the cases whose inputs may hold places or counts, of names with one of ``words``."""
    for case in node_cases():
        takes_integers = any(array.dtype.kind in "iu" for array in case.inputs.values())
        if not takes_integers and not any(word in case.name for word in _PLACES):
            continue
        if any(word in case.name for word in _LEFT_OUT):
            continue
        if not words or any(word in case.name for word in words):
            yield case


def wild(array: np.ndarray, kind: int, chance: np.random.Generator) -> np.ndarray:
    """Return an array of the same shape and type with wild values of one of three kinds."""
    if array.dtype.kind in "iu":
        ends = np.iinfo(array.dtype)
        least, most = int(ends.min), int(ends.max)
        pools = ((least, most), (-1, 0, 1, 7, 100), (most // 2, most // 3 + 1, 2**20, -(2**20)))
        pool = [min(max(value, least), most) for value in pools[kind]]
        return np.array(pool, array.dtype)[chance.integers(0, len(pool), array.shape)]
    if array.dtype.kind == "f":
        pool = np.array(_FLOATS[kind])[chance.integers(0, len(_FLOATS[kind]), array.shape)]
        with np.errstate(over="ignore"):
            return np.asarray(pool).astype(array.dtype)
    return array


def _outcome(case: Case, phase: Phase) -> Outcome:
    return judged(phase, lambda at: _called(case, at))


def _called(case: Case, phase: Phase) -> tuple[str, str]:
    """Return what is wrong, and how many calls were refused."""
    import tvmopt
    from tvmopt.errors import TvmoptError

    phase("compile")
    shapes = {name: array.shape for name, array in case.inputs.items()}
    compiled = tvmopt.compile(case.model, shapes, threads=1, layout="NCHW")
    phase("call")
    refused, chance = 0, np.random.default_rng(0)
    for number in range(_CALLS):
        arrays = dict(case.inputs)
        for name, array in arrays.items():
            if number % 2 == 0 or array.dtype.kind in "iu":
                arrays[name] = wild(array, number % 3, chance)
        try:
            compiled(arrays)
        except TvmoptError as error:
            refused += 1
            if not is_clear(str(error)):
                return f"unclear: {ascii(str(error))[:300]}", ""
    return "", f"{refused} of {_CALLS} calls refused"


def main() -> int:
    """Call the cases; return exit code 1 for a fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="names that hold one of these, with commas")
    parser.add_argument("--part", default="1/1", help="every N-th case from the K-th on: K/N")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    words = [word for word in given.only.split(",") if word]
    return report(run(list(hostile_cases(words))[part - 1 :: parts]))


if __name__ == "__main__":
    sys.exit(main())
