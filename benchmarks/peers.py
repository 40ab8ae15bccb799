"""Peers of the CPU benchmarks, ONNX Runtime, OpenVINO and PyTorch, and their settings.

ONNX Runtime is a dependency of tvmopt; ``pip install -e .[bench]`` adds OpenVINO and PyTorch. The
column of a peer that is not installed stays empty. All peers get the same number of threads.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

Call = Callable[[], Any]
OPTIONAL = ("openvino", "torch")


def available(name: str) -> bool:
    """Whether the package ``name`` is installed."""
    return importlib.util.find_spec(name) is not None


def set_threads(threads: int) -> None:
    """Set the threads of TVM and PyTorch, before either starts its thread pool."""
    from tvmopt.device.target import set_thread_environment

    set_thread_environment(threads)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    if available("torch"):
        import torch

        torch.set_num_threads(threads)


def inference_mode() -> contextlib.AbstractContextManager[object]:
    """Return PyTorch's inference mode, or a null context without PyTorch."""
    if not available("torch"):
        return contextlib.nullcontext()
    import torch

    return torch.inference_mode()


def ort_session(model: onnx.ModelProto, threads: int, spins: bool = True) -> Any:
    """Return an ``onnxruntime.InferenceSession`` of a model on the CPU.

    Args:
        model: The model.
        threads: Threads of a call.
        spins: Whether its threads spin between two calls, as they do by default.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def openvino_model(
    model: onnx.ModelProto, threads: int, precision: str = "f32"
) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]:
    """Compile the model with OpenVINO; return a function from inputs to outputs in graph order.

    Args:
        model: The model.
        threads: Inference threads.
        precision: ``"f32"`` or ``"bf16"``; the CPU plugin would choose bf16 by itself.
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
