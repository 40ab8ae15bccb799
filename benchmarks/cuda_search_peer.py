"""Steps of ``cuda_search`` in processes of their own: draw samples, time torch.compile.

Usage: ``python -m benchmarks.cuda_search_peer data MODEL SHAPES NAME COUNT FILE.npz``, or
``... torch MODEL SHAPES NETWORK FILE.json``
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.frontend import load_onnx, prepare, shapes_for
from tvmopt.frontend.reference import input_specs

_WARM_UP, _SAMPLES = 10, 200


def draw(model: str, shapes: str, name: str, count: str, path: str) -> None:
    """Write ``count`` samples of a model's inputs."""
    from benchmarks.real_inputs import samples

    loaded = load_onnx(Path(model))
    specs = input_specs(prepare(loaded, shapes_for(loaded, shapes)).reference)
    arrays: dict[str, np.ndarray] = samples(name, specs, int(count), 0)
    np.savez(path, allow_pickle=False, **arrays)


def time_peer(model: str, shapes: str, network: str, path: str) -> None:
    """Write the median milliseconds of torch.compile in float16, by the GPU's clock."""
    import torch

    module, inputs = _module(model, shapes, network)
    # Triton convolutions lost to cuDNN after minutes of autotuning; the rest is autotuned.
    inductor: Any = importlib.import_module("torch._inductor.config")
    inductor.max_autotune_conv_backends = "ATEN"
    torch.backends.cudnn.benchmark = True
    found: dict[str, float] = {}
    # The faster of both layouts: PyTorch chooses none by itself.
    layouts = {"contiguous": torch.contiguous_format}
    if any(tensor.ndim == 4 for tensor in inputs):
        layouts["channels_last"] = torch.channels_last
    for label, layout in layouts.items():
        torch._dynamo.reset()
        placed = module.cuda().half().to(memory_format=layout)
        tensors = [_placed(tensor, layout) for tensor in inputs]
        compiled = torch.compile(placed, mode="max-autotune")
        with torch.inference_mode():
            found[label] = _milliseconds(torch, lambda: compiled(*tensors))  # noqa: B023
        print(label, found[label], flush=True)
    facts = {"ms": min(found.values()), "layouts": found, "torch": torch.__version__}
    facts["gpu"] = torch.cuda.get_device_name()
    Path(path).write_text(json.dumps(facts))


def _placed(tensor: Any, layout: Any) -> Any:
    tensor = tensor.cuda()
    if tensor.is_floating_point():
        tensor = tensor.half()
    return tensor.to(memory_format=layout) if tensor.ndim == 4 else tensor


def _milliseconds(torch: Any, call: Any) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    samples = []
    for number in range(_WARM_UP + _SAMPLES):  # the first calls compile and record CUDA graphs
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        if number >= _WARM_UP:
            samples.append(start.elapsed_time(stop))
    return statistics.median(samples)


def _module(model: str, shapes: str, network: str) -> tuple[Any, list[Any]]:
    """Return a module on the CPU in float32, and inputs."""
    import torch

    from benchmarks.cuda_networks import NETWORKS
    from benchmarks.torch_models import torch_module

    if network != "onnx":
        found = NETWORKS[network]
        return found.module(), [found.example()]
    loaded = load_onnx(Path(model))
    prepared = prepare(loaded, shapes_for(loaded, shapes))
    module = torch_module(prepared.model)
    if module is None:
        raise SystemExit(f"PyTorch has no operator for one of {model}")
    rng = np.random.default_rng(0)
    inputs = [
        torch.from_numpy(
            rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim]).astype(
                np.float32
            )
        )
        for value in prepared.model.graph.input
    ]
    return module, inputs


if __name__ == "__main__":
    step, *arguments = sys.argv[1:]
    if step == "data":
        draw(*arguments)
    else:
        time_peer(*arguments)
