"""Libraries of single GPU kernels that one machine builds with nvcc and another one times."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.emit import emit_kernel, hint_from_dict
from tvmopt.measure.workers import Job, WorkerPool


def export_kernel(kernel: Any, gpu: CudaArch, path: str) -> None:
    """Build a scheduled kernel as ``main`` of the library ``path``."""
    from tvmopt.kernels.cuda.build import build_kernels
    from tvmopt.kernels.cuda.toolchain.modules import embed_cubins
    from tvmopt.link import link_options

    with embed_cubins(gpu):
        build_kernels({"main": kernel}, gpu).export_library(path, **link_options())


def export_configured(func: Any, config: dict[str, Any], path: str) -> None:
    """Emit a function with a configuration (``to_dict``), and build it as :func:`export_kernel`."""
    hint = hint_from_dict(config)
    export_kernel(emit_kernel(func, hint), hint.arch, path)


def build_libraries(
    function: str,
    kernels: Sequence[tuple[dict[str, Any], dict[str, Any]]],
    folder: Path,
    timeout_s: float,
) -> int:
    """Build kernels in worker processes, and write ``index.json`` of those that were built.

    Args:
        function: ``"module:function"`` that calls :func:`export_configured`; its arguments
            are ``row``, ``config`` and ``path``.
        kernels: Entry of the index (``row``, ``library`` and ``config``, a description) and the
            configuration of each kernel.
        folder: Folder for the libraries.
        timeout_s: Seconds that a kernel may take.

    Returns:
        The number of failures, each of which is printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = []
    for entry, config in kernels:
        path = str((folder / entry["library"]).resolve())
        jobs.append(Job(function, {"row": entry["row"], "config": config, "path": path}, timeout_s))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch, WorkerPool(2, 1, Path(scratch), "build") as pool:
        outcomes = pool.run(jobs)
    built = []
    for (entry, _), outcome in zip(kernels, outcomes, strict=True):
        if outcome.error is None:
            built.append(entry)
        else:
            print(f"{entry['row']} {entry['config']}: {outcome.error}", file=sys.stderr)
    (folder / "index.json").write_text(json.dumps(built, indent=1))
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    seconds = time.perf_counter() - start
    print(f"{len(built)} of {len(jobs)} kernels built in {seconds:.0f} s, {size:.1f} MB")
    return len(jobs) - len(built)
