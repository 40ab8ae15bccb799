"""Fuzz the stages with mutated ONNX models, each in a forked child.

``python -m tests.fuzz.models FIRST LAST --seed S --whole SHARE`` prints one JSON line per mutant.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.forked import Phase, import_all, in_child, read, report
from tests.fuzz.mutants import Mutant, mutant
from tests.fuzz.outcome import GOOD, Outcome, judge


def run(
    numbers: range, seed: int, whole: float, keep: Path | None = None
) -> Iterator[dict[str, Any]]:
    """Run each mutant in a child; yield its record.

    Args:
        numbers: Numbers of the mutants.
        seed: Seed of the series.
        whole: Share of mutants that are compiled; the others are loaded, prepared and imported.
        keep: Folder for the files of mutants with a bad outcome.
    """
    import_all()
    for number in numbers:
        wanted = random.Random(f"whole {seed}/{number}").random() < whole
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tvmopt-fuzz-") as name:
            folder = Path(name)
            for part in ("model", "out"):
                (folder / part).mkdir()

            def work(
                phase: Phase, folder: Path = folder, number: int = number, wanted: bool = wanted
            ) -> Outcome:
                one = mutant(number, seed)
                path = write(one, folder)
                return judge(path, one.input_shapes, folder / "out", phase, whole=wanted)

            outcome, used = in_child(folder, work)
            story = json.loads(read(folder / "story") or "{}")
            if outcome.kind not in GOOD and keep is not None:
                kept = keep / f"{seed}-{number}"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(folder / "model", kept)
                shutil.copyfile(folder / "log", kept / "log.txt")
        yield {
            "number": number, "seed": seed, "whole": wanted, **dataclasses.asdict(outcome),
            "wall_s": round(time.monotonic() - start, 3), "cpu_s": round(used, 3), **story,
        }  # fmt: skip


def write(one: Mutant, folder: Path) -> Path:
    """Write the files and the history of a mutant into ``folder``; return the path of the model."""
    path = folder / "model" / "mutant.onnx"
    path.write_bytes(one.content)
    for name, content in one.files.items():
        (path.parent / name).write_bytes(content)
    words = {"story": one.story, "shapes": one.input_shapes}
    (folder / "story").write_text(json.dumps(words))
    return path


def main() -> int:
    """Run a range of mutants; return exit code 1 for a bad outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole", type=float, default=1.0)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    numbers = range(given.first, given.last)
    return report(run(numbers, given.seed, given.whole, given.keep))


if __name__ == "__main__":
    sys.exit(main())
