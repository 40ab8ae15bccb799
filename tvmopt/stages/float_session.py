"""Sessions of ONNX Runtime that run the float model on the CPU: the reference and the baseline."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from tvmopt.frontend.prepare import session_options
from tvmopt.stages.module_files import REFERENCE_FILE

if TYPE_CHECKING:
    import onnxruntime as ort

FloatModelCall = Callable[[dict[str, np.ndarray]], list[np.ndarray]]


def float_reference(convert_dir: Path, threads: int) -> FloatModelCall:
    """Return a function that computes the float model of a convert stage's output."""
    session = _session(str(convert_dir / REFERENCE_FILE), threads)
    names = [o.name for o in session.get_outputs()]
    return lambda inputs: session.run(names, inputs)


def bound_reference(
    model: onnx.ModelProto, inputs: dict[str, np.ndarray], threads: int
) -> Callable[[], object]:
    """Return a call of ONNX Runtime on some inputs."""
    session = _session(model, threads)
    return functools.partial(session.run, None, inputs)


def _session(model: onnx.ModelProto | str, threads: int) -> ort.InferenceSession:
    import onnxruntime as ort

    options = session_options(model, threads)
    # Threads that go on spinning after a call would slow down whoever is measured next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    source = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
