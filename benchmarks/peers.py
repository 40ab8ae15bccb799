"""Which peers there are, and what all of them share: ONNX Runtime, OpenVINO, PyTorch.

ONNX Runtime comes with the package; OpenVINO and PyTorch come with ``pip install -e .[bench]``. A
peer that is not installed has no contender, and its column stays empty. All get the same threads.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

Call = Callable[[], Any]
OPTIONAL = ("openvino", "torch")


def available(name: str) -> bool:
    """Whether the peer ``name`` is installed."""
    return importlib.util.find_spec(name) is not None


def set_threads(threads: int) -> None:
    """Give TVM and PyTorch ``threads`` threads; before either has started its pool."""
    from tvmopt.device.target import set_thread_environment

    set_thread_environment(threads)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    if available("torch"):
        import torch

        torch.set_num_threads(threads)


def inference_mode() -> contextlib.AbstractContextManager[object]:
    """PyTorch without autograd; nothing where there is no PyTorch."""
    if not available("torch"):
        return contextlib.nullcontext()
    import torch

    return torch.inference_mode()


def openvino_call(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], threads: int
) -> Callable[[], list[np.ndarray]]:
    """The model in OpenVINO, float32 whatever the CPU could do; outputs in the graph's order."""
    infer, arrays = openvino_model(model, threads), dict(inputs)
    return lambda: infer(arrays)


def openvino_model(
    model: onnx.ModelProto, threads: int, precision: str = "f32"
) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]:
    """The model in OpenVINO, as a function of its inputs.

    Args:
        model: The model.
        threads: Threads that it gets.
        precision: ``"f32"`` or ``"bf16"``.
    """
    import openvino

    config = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", config)
    request = compiled.create_infer_request()

    def call(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        result = request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        return list(result.values())

    return call
