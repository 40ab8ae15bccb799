"""Memory of a process that only loads a compiled model and calls it.

Run as ``python -m tvmopt.evaluate.memory FOLDER``; prints megabytes (10^6 bytes). For a CPU model
this is the process's peak resident memory, for a GPU model the GPU memory that it occupies.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_CALLS = 3
_TIMEOUT_S = 600


def peak_memory_mb(bundle: Path) -> float:
    """Return the memory in megabytes of a process that runs the golden inputs of ``bundle``.

    This is peak resident memory for a CPU model, and GPU memory including kernels for a GPU model.
    """
    env = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tvmopt.evaluate.memory", str(bundle)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    return float(done.stdout.split()[-1])


def _main(folder: str) -> None:
    # tvm_ffi imports PyTorch where it is installed: 200 MB that the model does not need.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from tvmopt.runtime import ModelMetadata, load
    from tvmopt.runtime.model import read_golden

    metadata = ModelMetadata.read(Path(folder))
    before = _free_on_gpu() if metadata.gpu else 0
    model = load(folder)
    inputs, _ = read_golden(Path(folder), metadata)
    for _ in range(_CALLS):
        model(inputs)
    if metadata.gpu:
        print((before - _free_on_gpu()) / 1e6)
        return
    # Not getrusage: its maximum survives exec and would include the parent's image.
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise OSError("this system does not report peak memory in /proc/self/status")
    print(int(found.group(1)) * 1024 / 1e6)


def _free_on_gpu() -> int:
    from tvmopt.device import cuda_runtime
    from tvmopt.device.cuda_graph import free_bytes

    if problem := cuda_runtime.problem():
        raise OSError(problem)
    return free_bytes()


if __name__ == "__main__":
    _main(sys.argv[1])
