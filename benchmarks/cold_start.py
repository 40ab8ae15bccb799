"""Cold start beside ONNX Runtime: ``python -m benchmarks.cold_start``.

A process that has just started loads the model, with all checks, and answers one call; the import
of modules does not count. Medians over processes; a ratio below 1 means that ours is faster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks import zoo
from benchmarks.options import begin_table, table_parser
from tvmopt.evaluate.fresh_process import measure_fresh_process

_MODELS = "resnet50,efficientnet_lite0,minilm_16"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    import tvmopt

    parser = table_parser(__doc__)
    parser.add_argument("--processes", type=int, default=9, help="processes of each model")
    parser.add_argument("--models", default=_MODELS, help="names, separated by commas")
    given = begin_table(parser, arguments)
    print("| model | library, MB | ours, ms | ONNX Runtime, ms | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for name in given.models.split(","):
        path, shapes = zoo.path(name), zoo.entry(name).input_shapes
        with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
            tvmopt.compile(path, shapes, threads=given.threads, output=folder)
            size = (Path(folder) / "model.so").stat().st_size / 1e6
            found = [
                measure_fresh_process(Path(folder), path, given.threads)
                for _ in range(given.processes)
            ]
        ours, theirs = (
            median(one[key] for one in found) for key in ("cold_start_ms", "baseline_cold_start_ms")
        )
        print(f"| {name} | {size:.0f} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
