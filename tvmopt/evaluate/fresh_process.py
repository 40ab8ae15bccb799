"""Measure memory and cold start of a model in a new process.

Run as ``python -m tvmopt.evaluate.fresh_process FOLDER``, or with an ONNX model and its threads
behind the folder for ONNX Runtime; prints metrics as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MODULE = "tvmopt.evaluate.fresh_process"
_CALLS = 3
_TIMEOUT_S = 600


def measure_fresh_process(bundle: Path, reference: Path | None, threads: int) -> dict[str, float]:
    """Return metrics of a process that runs the golden inputs of a compiled model.

    Args:
        bundle: Folder of the compiled model.
        reference: The ONNX file that it was made from; None to leave out ONNX Runtime.
        threads: Threads of ONNX Runtime.

    Returns:
        ``peak_memory_mb``: peak resident memory for a CPU model, and GPU memory including kernels
        for a GPU model, in 10^6 bytes. ``cold_start_ms``: time to load the model and answer the
        first call, without the import of modules. ``baseline_cold_start_ms``: that of ONNX
        Runtime on the CPU.
    """
    found = _run(bundle)
    return found if reference is None else found | _run(bundle, reference, threads)


def _run(*arguments: Path | int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", _MODULE, *map(str, arguments)],
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _compiled(folder: Path) -> dict[str, float]:
    from tvmopt.device.tvm_import import import_tvm_without_torch
    from tvmopt.runtime import ModelMetadata, load
    from tvmopt.runtime.model import read_golden

    metadata = ModelMetadata.read(folder)
    if not metadata.native:  # importing modules does not count
        import_tvm_without_torch()
    before = _free_on_gpu() if metadata.gpu else 0
    inputs, _ = read_golden(folder, metadata)
    cold_start_ms, model = _first_answer(lambda: load(folder), lambda model: model(inputs))
    for _ in range(_CALLS):
        model(inputs)
    memory = before - _free_on_gpu() if metadata.gpu else _peak_bytes()
    return {"cold_start_ms": cold_start_ms, "peak_memory_mb": memory / 1e6}


def _onnxruntime(folder: Path, reference: str, threads: int) -> dict[str, float]:
    import onnxruntime as ort

    from tvmopt.runtime import ModelMetadata
    from tvmopt.runtime.model import read_golden

    inputs, _ = read_golden(folder, ModelMetadata.read(folder))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    # See tvmopt.frontend.prepare.session_options, whose import would bring the compiler.
    options.add_session_config_entry("optimization.disable_specified_optimizers", "Pad_Fusion")
    milliseconds, _ = _first_answer(
        lambda: ort.InferenceSession(reference, options, providers=["CPUExecutionProvider"]),
        lambda session: session.run(None, inputs),
    )
    return {"baseline_cold_start_ms": milliseconds}


def _first_answer(load: Callable[[], Any], call: Callable[[Any], Any]) -> tuple[float, Any]:
    """Return the milliseconds to load a model and call it once, and the model."""
    start = time.perf_counter()
    model = load()
    call(model)
    return (time.perf_counter() - start) * 1e3, model


def _peak_bytes() -> int:
    # Not getrusage: its maximum survives exec and would include the parent's image.
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise OSError("this system does not report peak memory in /proc/self/status")
    return int(found.group(1)) * 1024


def _free_on_gpu() -> int:
    from tvmopt.device import cuda_runtime
    from tvmopt.device.cuda_graph import free_bytes

    if problem := cuda_runtime.problem():
        raise OSError(problem)
    return free_bytes()


if __name__ == "__main__":
    _folder, *_reference = sys.argv[1:]
    if _reference:
        _found = _onnxruntime(Path(_folder), _reference[0], int(_reference[1]))
    else:
        _found = _compiled(Path(_folder))
    print(json.dumps(_found))
