"""Steps of ``cuda_search``, a process each: draw samples, time torch.compile and the champion.

Usage: ``python -m benchmarks.cuda_search_peer data MODEL SHAPES NAME COUNT FILE.npz``, or
``... torch MODEL SHAPES NETWORK FILE.json SECONDS CHAMPION``, where CHAMPION is a model's URI in
MLflow or empty
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.frontend import load_onnx, prepare, shapes_for
from tvmopt.frontend.reference import input_specs

# Calls of torch.compile before timing, interleaved rounds, and timed calls of each in a round.
_WARM_UP, _ROUNDS, _CALLS = 10, 20, 10
_SECOND_BEFORE = 0.45  # of the time limit: the second layout takes about as long as the first


def draw(model: str, shapes: str, name: str, count: str, path: str) -> None:
    """Write ``count`` samples of a model's inputs."""
    from benchmarks.real_inputs import samples

    loaded = load_onnx(Path(model))
    specs = input_specs(prepare(loaded, shapes_for(loaded, shapes)).reference)
    arrays: dict[str, np.ndarray] = samples(name, specs, int(count), 0)
    np.savez(path, allow_pickle=False, **arrays)


def time_peer(
    model: str, shapes: str, network: str, path: str, seconds: str, champion: str
) -> None:
    """Write the median milliseconds of torch.compile in float16 and of the champion beside it.

    Both are timed by the GPU's clock in interleaved rounds. The layouts of PyTorch are compiled one
    after the other, ``channels_last`` first, since cuDNN's float16 convolutions prefer it. The file
    is written after each; the second one is left out when more than 45% of the time is spent.

    Args:
        model: The ONNX file.
        shapes: Its ``input_shapes``.
        network: Network of :mod:`benchmarks.cuda_networks`, or ``"onnx"``.
        path: File to write.
        seconds: Time limit, which the caller enforces.
        champion: URI of the champion; empty for none.
    """
    began = time.monotonic()
    import torch

    module, inputs = _module(model, shapes, network)
    facts: dict[str, Any] = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
    ours: Callable[[], float] | None = None
    if champion:
        try:
            ours = _champion(champion)
        except Exception as error:  # the ratio is then of the search's last round, and says so
            facts["not_beside"] = f"the champion was timed in its search alone: {error}"
    # Triton convolutions lost to cuDNN after minutes of autotuning; the rest is autotuned.
    inductor: Any = importlib.import_module("torch._inductor.config")
    inductor.max_autotune_conv_backends = "ATEN"
    torch.backends.cudnn.benchmark = True
    layouts = {"contiguous": torch.contiguous_format}
    if any(tensor.ndim == 4 for tensor in inputs):
        layouts = {"channels_last": torch.channels_last, **layouts}
    for number, (label, layout) in enumerate(layouts.items()):
        if number and time.monotonic() - began > _SECOND_BEFORE * float(seconds):
            facts["left_out"] = f"torch.compile in layout {label} was left out, for time"
            _write(path, facts)
            break
        torch._dynamo.reset()
        placed = module.cuda().half().to(memory_format=layout)
        tensors = [_placed(tensor, layout) for tensor in inputs]
        compiled = torch.compile(placed, mode="max-autotune")
        with torch.inference_mode():
            found = _side_by_side(torch, lambda: compiled(*tensors), ours)  # noqa: B023
        print(label, found, f"{time.monotonic() - began:.0f} s", flush=True)
        if found["ms"] < facts.get("ms", float("inf")):
            facts |= found | {"layout": label}
        _write(path, facts)


def _write(path: str, facts: dict[str, Any]) -> None:
    """Write the file whole: the process may be stopped at any time."""
    partial = Path(f"{path}.part")
    partial.write_text(json.dumps(facts))
    partial.replace(path)


def _champion(uri: str) -> Callable[[], float]:
    """Return a function that runs the champion once and returns the GPU's seconds."""
    from tvmopt.runtime import load
    from tvmopt.runtime.model import read_golden
    from tvmopt.tracking import flavor
    from tvmopt.tracking.flavor.verify import verify_model

    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        bundle = verify_model(flavor.download(uri, Path(folder))).bundle
        model = load(bundle)
        inputs, _ = read_golden(bundle, model.metadata)
    model(inputs)
    return lambda: model.gpu_seconds(1)


def _placed(tensor: Any, layout: Any) -> Any:
    tensor = tensor.cuda()
    if tensor.is_floating_point():
        tensor = tensor.half()
    return tensor.to(memory_format=layout) if tensor.ndim == 4 else tensor


def _side_by_side(
    torch: Any, call: Callable[[], Any], ours: Callable[[], float] | None
) -> dict[str, float]:
    """Return the median milliseconds of a call, ``ms``, and of the champion, ``champion_ms``."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def theirs() -> float:
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(stop))

    for _ in range(_WARM_UP):  # compiles, and records CUDA graphs
        theirs()
    samples: dict[str, list[float]] = {"ms": [], "champion_ms": []}
    for _ in range(_ROUNDS):
        samples["ms"] += [theirs() for _ in range(1 + _CALLS)][1:]
        if ours is not None:
            samples["champion_ms"] += [1e3 * ours() for _ in range(1 + _CALLS)][1:]
    return {name: statistics.median(found) for name, found in samples.items() if found}


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
