"""Compare single operators with PyTorch on a GPU, with kernels that another machine has built.

Usage, in two steps, so that no time on the GPU is spent on nvcc::

    python -m benchmarks.cuda_prebuilt build --out DIR [--rows ROW,..] [--topk K] [--gpu NAME]
        [--variants FIELD=VALUE;FIELD=VALUE ..]
    python -m benchmarks.cuda_prebuilt run --in DIR [--json FILE]

``build`` needs nvcc and no GPU; ``run`` needs the GPU and PyTorch, and no nvcc. Rows are named as
in :mod:`.cuda_rows`; ``--rows tf32`` and ``--rows float32`` are lists of rows. Rows of dtype
``tf32`` let PyTorch use TF32, too, and time its exact float32 beside it. Contenders of a row are
timed interleaved, as CUDA graphs. ``--variants`` adds the top-1 with other values of some fields,
such as ``'stages=3;async_copy=true'``, to sweep what the ranking does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cuda_rows import row as row_of
from benchmarks.prebuilt import build_libraries, export_configured
from benchmarks.report import markdown, number
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.emit import hint_from_dict
from tvmopt.kernels.policies import policy_of
from tvmopt.measure.measurer import argument_types
from tvmopt.measure.workers import Job, WorkerPool

_MATMULS = (
    "matmul_nt-1024-1024-1024", "matmul_nn-1024-1024-1024", "matmul_nt-2048-2048-2048",
    "matmul_nt-4096-4096-4096", "matmul_nn-4096-4096-4096", "matmul_tn-4096-4096-4096",
    "matmul_tt-4096-4096-4096", "matmul_nt-8192-8192-8192", "matmul_nn-8192-8192-8192",
    "matmul_nt-2000-2000-2000", "matmul_nt-3000-3000-3000", "matmul_nt-512-512-16384",
)  # fmt: skip
_CONVOLUTIONS = (
    "conv2d-64-64-56-56-64-3-3-1-1-1", "conv2d-64-128-28-28-128-3-3-1-1-1",
    "conv2d-64-256-14-14-256-3-3-1-1-1", "conv2d-128-512-7-7-512-3-3-1-1-1",
    "conv2d-64-512-14-14-512-3-3-1-1-1", "conv2d-128-256-56-56-64-1-1-1-1-0",
    "conv2d-128-64-224-224-3-7-7-2-1-3", "conv2d-16-32-224-224-3-3-3-2-1-1",
)  # fmt: skip
_MEMORY = ("add-16384-16384", "add-8192-8192", "sum-16384-1024", "sum-100-100000")
#: Lists of rows by name.
LISTS = {
    "tf32": [f"{row}-tf32" for row in (*_MATMULS, *_CONVOLUTIONS)],
    "float32": [f"{row}-float32" for row in (*_MATMULS, *_CONVOLUTIONS, *_MEMORY)],
}
# Timeouts in seconds: of building a kernel, and of a row's measurement.
_BUILD_S, _ROW_S = 240.0, 60.0


def rows(text: str) -> list[str]:
    """Return the names of rows; a name of a list stands for its rows."""
    return [row for name in text.split(",") for row in LISTS.get(name, [name])]


def build_kernel(row: str, config: dict[str, Any], path: str) -> None:
    """Build the kernel of a row and a configuration, as ``main`` of the library ``path``."""
    export_configured(row_of(row).func, config, path)


def varied(config: Any, text: str) -> Any:
    """Return ``config`` with the fields that ``text`` names; None where it has no such fields.

    Args:
        config: A configuration.
        text: Fields and their values in JSON, such as ``"tile=[64,128];stages=3"``.
    """
    fields = dict(part.split("=") for part in text.split(";"))
    values = {key: json.loads(value) for key, value in fields.items()}
    data = config.to_dict()
    return hint_from_dict(data | values) if values.keys() <= data.keys() else None


def build(
    names: Sequence[str], topk: int, gpu: str, folder: Path, variants: Sequence[str] = ()
) -> int:
    """Build the kernels of all rows into ``folder``; return the number of failures.

    Args:
        names: Names of the rows.
        topk: Configurations of each row.
        gpu: Name of the GPU.
        folder: Folder for the libraries and their index.
        variants: Variants of each row's top-1, as of :func:`varied`.
    """
    kernels = []
    for name in names:
        configs: Any = policy_of(row_of(name).func, GPUS[gpu]).emit_config(topk)
        more = (varied(configs[0], text) for text in variants)
        configs += [one for one in more if one is not None and one not in configs]
        for number_, config in enumerate(configs):
            library = f"{name}-{number_}.so"
            entry = {"row": name, "library": library, "config": str(config)}
            kernels.append((entry, config.to_dict()))
    return build_libraries("benchmarks.cuda_prebuilt:build_kernel", kernels, folder, _BUILD_S)


def cells(row: str, libraries: dict[str, dict[str, str]], found: dict[str, Any]) -> list[str]:
    """Return the cells of one row of the table.

    Args:
        row: Name of the row.
        libraries: Entry of the index by contender; the first one is the top-1.
        found: Result of :func:`benchmarks.cuda_timing.measure`.
    """
    ms, errors = found.get("ms", {}), found.get("errors", {})
    timed = [name for name in libraries if name in ms]
    best = min(timed, key=lambda name: ms[name], default="")
    first, torch = next(iter(libraries)), ms.get("torch")
    ratios = [torch / ms[one] if torch and one in ms else None for one in (first, best)]
    return [
        row,
        *(number(ms.get(one), ".4g") for one in ("torch float32", "torch", first, best)),
        *(number(ratio, ".3f") for ratio in ratios),
        f"{max((errors.get(one, 0.0) for one in libraries), default=0.0):.1e}",
        number(errors.get("torch"), ".1e"),
        libraries[best]["config"] if best else "-",
    ]


def run(folder: Path, json_path: str) -> int:
    """Measure the rows of ``folder``; return the number of problems."""
    index = json.loads((folder / "index.json").read_text())
    lines, results, problems = [], [], 0
    versions: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, WorkerPool(1, 4, Path(scratch), "run") as pool:
        pool.run([Job("benchmarks.cuda_timing:start", {}, 120.0)])
        for name in dict.fromkeys(entry["row"] for entry in index):
            entries = [entry for entry in index if entry["row"] == name]
            libraries = {f"ours{n}": entry for n, entry in enumerate(entries)}
            kernels = {
                key: (str((folder / entry["library"]).resolve()), "main")
                for key, entry in libraries.items()
            }
            values = {
                "row": name, "arguments": argument_types(row_of(name).func), "kernels": kernels
            }  # fmt: skip
            [outcome] = pool.run([Job("benchmarks.cuda_timing:measure", values, _ROW_S)])
            found = {"problems": {"row": outcome.error}} if outcome.error else outcome.value
            versions |= found.get("versions", {})
            lines.append(cells(name, libraries, found))
            results.append({"row": name, "index": entries, "found": found})
            problems += len(found["problems"])
            print(" ".join(lines[-1][:7]), flush=True)
            for contender, problem in found["problems"].items():
                print(f"    {contender} FAILED: {problem}", flush=True)
    print(", ".join(f"{key} {value}" for key, value in versions.items()))
    header = (
        "operator", "PyTorch float32 ms", "PyTorch ms", "top-1 ms", "best ms", "PyTorch / top-1",
        "PyTorch / best", "max error", "PyTorch's error", "best configuration",
    )  # fmt: skip
    print(markdown(header, lines))
    if json_path:
        Path(json_path).write_text(json.dumps(results, indent=1))
    return problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_prebuilt")
    parser.add_argument("step", choices=("build", "run"))
    parser.add_argument("--out", default="prebuilt-kernels", help="folder that build writes")
    parser.add_argument("--in", dest="folder", default="prebuilt-kernels", help="folder to run")
    parser.add_argument("--rows", default="tf32", help="rows or lists of rows, with commas between")
    parser.add_argument("--topk", type=int, default=4, help="configurations of each row")
    parser.add_argument("--variants", nargs="*", default=[], help="like 'stages=3;async_copy=true'")
    parser.add_argument("--gpu", default="nvidia-h200", choices=GPUS, help="GPU to build for")
    parser.add_argument("--json", default="", help="file to write the results to")
    args = parser.parse_args(arguments)
    if args.step == "run":
        return int(run(Path(args.folder), args.json) > 0)
    try:
        names = rows(args.rows)
        for name in names:
            row_of(name)
    except ValueError as error:
        parser.error(str(error))
    return int(build(names, args.topk, args.gpu, Path(args.out), args.variants) > 0)


if __name__ == "__main__":
    sys.exit(main())
