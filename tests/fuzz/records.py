"""Fuzz builds with mutated tuning databases, each in a forked child.

``python -m tests.fuzz.records COUNT --seed S --whole SHARE`` prints one JSON line per mutant.
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

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz.forked import Phase, import_all, in_child, report
from tests.fuzz.json_mutations import damaged, mutated
from tests.fuzz.outcome import RIGHT, Outcome, judged, wrong_numbers

_FILES = ("database_tuning_record.json", "database_workload.json", "meta.json")
_ANNOTATIONS = (
    "pragma_import_llvm", "pragma_import_c", "tvmopt.prefetch", "meta_schedule.vectorize",
    "pragma_auto_unroll_max_step",
)  # fmt: skip
_FOREIGN = 'define void @run() { call void asm "ud2", ""() ret void }'


def _model() -> bytes:
    """Return a model of two matmuls, one of them with Relu."""
    weights = np.random.default_rng(0).standard_normal((2, 16, 16)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 16]) for n in "xy")
    tensors = [numpy_helper.from_array(w, n) for w, n in zip(weights, "vw", strict=True)]
    graph = helper.make_graph(nodes, "graph", [x], [y], tensors)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def prepare(folder: Path, granularity: str) -> None:
    """Convert a small model, and tune it into a database of ``granularity``."""
    from tvmopt.stages.convert import convert
    from tvmopt.stages.tune import tune

    for part in ("convert", "tune"):
        (folder / part).mkdir()
    (folder / "model.onnx").write_bytes(_model())
    request = _request(folder, granularity)
    convert(request.convert, folder / "model.onnx", folder / "convert", _no_progress)
    tune(request.tune, folder / "convert", folder / "tune", _no_progress)
    assert all((folder / "tune" / "database" / name).exists() for name in _FILES)


def _request(folder: Path, granularity: str) -> Any:
    from tvmopt.tracking.pipeline.request import make_request

    return make_request(
        folder / "model.onnx", name="records", threads=1, layout="NCHW", strategy="fast",
        granularity=granularity, topk=2,
    )  # fmt: skip


def _no_progress(done: int, total: int, text: str) -> None:
    pass


def spoil(database: Path, chance: random.Random) -> str:
    """Mutate a database in place; return a description."""
    name = chance.choice([_FILES[0], _FILES[0], _FILES[1], _FILES[2]])
    path = database / name
    text = path.read_text()
    kind = chance.choice(["bytes", "values", "values", "numbers", "lines", "swap", "foreign"])
    if kind == "bytes":
        path.write_bytes(damaged(text, chance))
    elif name == "meta.json":
        path.write_text(json.dumps(mutated(json.loads(text), chance)))
    elif kind == "lines":
        lines = text.splitlines()
        at = chance.randrange(len(lines))
        match chance.randrange(4):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[at])
            case 2:
                lines[at] = chance.choice(["", "[]", "null", "[0]", "[[]]", "{}", lines[at][1:]])
            case _:
                chance.shuffle(lines)
        path.write_text("\n".join(lines) + "\n")
    elif kind == "swap":
        other = database / chance.choice(_FILES)
        content = other.read_bytes()
        path.write_bytes(content)
    else:
        lines = text.splitlines()
        at = chance.randrange(len(lines))
        row = json.loads(lines[at])
        if name == _FILES[0] and kind == "foreign":
            steps = row[1][0][0]
            value = chance.choice([_FOREIGN, 1, -1, 10**9])
            key = chance.choice(_ANNOTATIONS)
            block = next(s[3] for s in steps if s[0] == "GetSBlock")
            steps.append(["Annotate", [block[0], value], [key], []])
        elif name == _FILES[0] and kind == "numbers":
            _change_numbers(row, chance)
        else:
            row = mutated(row, chance)
        lines[at] = json.dumps(row)
        path.write_text("\n".join(lines) + "\n")
    return f"{name}: {kind}"


def _change_numbers(row: Any, chance: random.Random) -> None:
    """Change numbers in the steps of a trace: factors, axes, positions, storage scopes."""
    steps = row[1][0][0]
    for _ in range(chance.choice([1, 1, 2, 4])):
        step = chance.choice(steps)
        place = chance.choice([step[1], step[2]])
        if not place:
            continue
        at = chance.randrange(len(place))
        if isinstance(place[at], int):
            place[at] = chance.choice([0, 1, 2, 3, 4, 5, 7, 8, 16, 64, -1, 2**31, 2**63])
        elif isinstance(place[at], str):
            place[at] = chance.choice(
                ["b0", "b1", "l1", "l2", "l3", "v4", '"local"', '"shared"', '"global"', "", "x"]
            )
        elif chance.random() < 0.3:
            steps.remove(step)


def run(count: int, seed: int, whole: float, granularity: str) -> Iterator[dict[str, Any]]:
    """Run each mutant in a child; yield its record.

    Args:
        count: Number of mutants.
        seed: Seed of the series.
        whole: Share of mutants that are built from; the others are opened and applied.
        granularity: Granularity of the database.
    """
    import_all()
    with tempfile.TemporaryDirectory(prefix="tvmopt-fuzz-") as name:
        base, start_dir = Path(name) / "base", Path(name) / "start"
        for folder in (base, start_dir):
            folder.mkdir()

        def first(phase: Phase) -> Outcome:
            prepare(base, granularity)
            return Outcome(RIGHT)

        outcome, _ = in_child(start_dir, first, seconds=200)
        assert outcome.kind == RIGHT, outcome
        for number in range(count):
            folder = Path(name) / str(number)
            folder.mkdir()
            chance = random.Random(f"{seed}/{number}")
            wanted = chance.random() < whole
            shutil.copytree(base / "tune", folder / "tune")
            story = spoil(folder / "tune" / "database", chance)

            def work(phase: Phase, folder: Path = folder, wanted: bool = wanted) -> Outcome:
                return judged(phase, lambda at: _build(base, folder, granularity, at, wanted))

            start = time.monotonic()
            outcome, used = in_child(folder, work)
            yield {
                "number": number, "seed": seed, "whole": wanted, **dataclasses.asdict(outcome),
                "wall_s": round(time.monotonic() - start, 3), "cpu_s": round(used, 3),
                "story": story,
            }  # fmt: skip
            shutil.rmtree(folder)


def _build(
    base: Path, folder: Path, granularity: str, phase: Phase, whole: bool
) -> tuple[str, str]:
    """Warm-start a new database from the mutant, and build with it; return what is wrong."""
    from tvmopt.device.target import TargetSpec
    from tvmopt.runtime import load
    from tvmopt.stages.build import BUNDLE_DIR, build
    from tvmopt.stages.module_files import read_module
    from tvmopt.transform.lower import lower
    from tvmopt.tune import DatabaseKey, apply_database, canonical_target
    from tvmopt.tune.warm_start import begin_database

    request = _request(base, granularity)
    target = TargetSpec.from_dict(request.build.target)
    llvm = target.to_tvm()
    key = DatabaseKey(canonical_target(llvm), target.threads, granularity=granularity)
    database = folder / "tune" / "database"
    phase("begin")
    begin_database(folder / "new", key, database)
    if not whole:
        phase("apply")
        apply_database(lower(read_module(base / "convert"), llvm), database, key, llvm)
        return "", "applied"
    phase("build")
    (folder / "build").mkdir()
    build(request.build, base / "convert", folder / "tune", "", folder / "build", _no_progress)
    phase("run")
    compiled = load(folder / "build" / BUNDLE_DIR)
    return wrong_numbers(compiled, base / "model.onnx", base / "convert"), ""


def main() -> int:
    """Run mutants; return exit code 1 for a bad outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole", type=float, default=1.0)
    parser.add_argument("--granularity", default="subgraph")
    given = parser.parse_args()
    return report(run(given.count, given.seed, given.whole, given.granularity))


if __name__ == "__main__":
    sys.exit(main())
