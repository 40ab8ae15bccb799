"""ONNX Runtime's MinMaxCalibrater for given tensors; importing it starts a thread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization.calibrate import MinMaxCalibrater

from tvmopt.quantize.downstream import new_session


class MinMax(MinMaxCalibrater):
    """ONNX Runtime's calibrator for given tensors instead of operator types."""

    def __init__(self, path: Path, wanted: list[str], augmented: str) -> None:
        super().__init__(path, augmented_model_path=augmented)
        self._wanted = wanted

    def create_inference_session(self) -> None:
        """Create a session that logs nothing."""
        # By default ONNX Runtime logs and does not optimise.
        self.infer_session = new_session(self.model)

    def select_tensors_to_calibrate(
        self, model: onnx.ModelProto
    ) -> tuple[list[str], dict[str, onnx.ValueInfoProto]]:
        """Return the names of the tensors, and the types of all tensors by name."""
        graph = model.graph
        values = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}
        return self._wanted, values


class OneBatch:
    """A calibration data reader over one batch."""

    def __init__(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._left: list[dict[str, np.ndarray]] = [dict(inputs)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the batch once, and None after it."""
        return self._left.pop() if self._left else None
