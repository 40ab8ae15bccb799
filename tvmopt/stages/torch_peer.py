"""torch.compile as a peer on the GPU: times the PyTorch model that the ONNX file comes from.

It runs in a separate process, after the other contenders: torch.compile takes minutes, and a
CUDA fault makes every later call of its process fail.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.errors import last_line
from tvmopt.exporters.source import SourceModel
from tvmopt.measure.workers import Job, WorkerPool

#: Labels in the comparison table, and the dtype that the model computes in.
TORCH_PEERS = {"torch_compile_fp32": "float32", "torch_compile_fp16": "float16"}
_MODE = "max-autotune"
_TIMEOUT_S = 600.0
_WARM_UP, _SAMPLES = 5, 50


def torch_version() -> str:
    """Return the version of PyTorch; empty where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return ""
    return importlib.metadata.version("torch")


def write_torch_source(path: Path, source: SourceModel, folder: Path) -> None:
    """Write what :func:`time_torch_compile` needs to load a model.

    Args:
        path: File to write.
        source: Description of the saved model.
        folder: The saved model.
    """
    path.write_text(json.dumps({"source": source.to_dict(), "folder": str(folder.resolve())}))


def time_torch_compile(
    file: Path, inputs: Mapping[str, np.ndarray]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return latency samples in seconds by label, and the reason for each that is missing.

    Args:
        file: What :func:`write_torch_source` wrote.
        inputs: The one input by name.
    """
    samples: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        scratch = Path(folder)
        array = scratch / "input.npy"
        np.save(array, next(iter(inputs.values())))
        for label, dtype in TORCH_PEERS.items():
            arguments = {"file": str(file), "array": str(array), "dtype": dtype}
            with WorkerPool(1, 1, scratch, label) as pool:
                [outcome] = pool.run([Job(f"{__name__}:torch_seconds", arguments, _TIMEOUT_S)])
            if outcome.error is None:
                samples[label] = [float(value) for value in outcome.value]
            else:
                missing[label] = last_line(outcome.error)
    return samples, missing


def torch_seconds(file: str, array: str, dtype: str) -> list[float]:
    """Return the seconds of single calls by the GPU's clock; runs in a worker process.

    The input stays in GPU memory. float32 is exact: TF32 is off, as PyTorch's default is.
    """
    import torch

    from tvmopt.exporters.torch import source_module

    said: dict[str, Any] = json.loads(Path(file).read_text())
    module = source_module(SourceModel.from_dict(said["source"]), Path(said["folder"]), "cuda")
    tensor = torch.from_numpy(np.load(array)).cuda()
    half = getattr(torch, dtype)
    module = module.to(half)
    # Triton's convolutions lose to cuDNN after minutes of autotuning; the rest is autotuned.
    inductor: Any = importlib.import_module("torch._inductor.config")
    inductor.max_autotune_conv_backends = "ATEN"
    if tensor.is_floating_point():
        tensor = tensor.to(half)
    compiled = torch.compile(module, mode=_MODE)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found = []
    with torch.inference_mode():
        for _ in range(_WARM_UP):  # compiles, and records CUDA graphs
            compiled(tensor)
        torch.cuda.synchronize()
        for _ in range(_SAMPLES):
            start.record()
            compiled(tensor)
            stop.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(stop) * 1e-3)
    return found
