"""Inputs, outputs and tolerances of a converted model: ``signature.json``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tvmopt.compare import Tolerance
from tvmopt.frontend.class_scores import ASSUMED, ClassScores
from tvmopt.runtime.metadata import TensorSpec, tensor_spec

SIGNATURE_FILE = "signature.json"


@dataclasses.dataclass(frozen=True)
class Signature:
    """Signature of a converted model.

    Attributes:
        inputs: Inputs in ONNX order.
        outputs: Outputs in ONNX order.
        random_inputs: Kind of random inputs that the float model accepts.
        tolerance: Deviation from the golden outputs that is allowed.
        min_cosine: Smallest cosine with the float model's outputs that is allowed.
        dtype: The dtype of the conversion.
        any_rows: Whether the first axis of all inputs and outputs counts independent samples.
        class_scores: Whether the first output holds scores of classes
            (:mod:`tvmopt.frontend.class_scores`).
        rounds_thresholds: Whether thresholds of trees are rounded.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    random_inputs: str
    tolerance: Tolerance
    min_cosine: float
    dtype: str = "float32"
    any_rows: bool = False
    class_scores: ClassScores = ASSUMED
    rounds_thresholds: bool = False

    @property
    def is_rounded(self) -> bool:
        """Return whether the conversion rounds more than the float model does."""
        return self.dtype != "float32" or self.rounds_thresholds

    def write(self, folder: Path) -> None:
        """Write ``signature.json``."""
        (folder / SIGNATURE_FILE).write_text(json.dumps(dataclasses.asdict(self), indent=2))

    @classmethod
    def read(cls, folder: Path) -> Signature:
        """Read what :meth:`write` wrote."""
        data = json.loads((folder / SIGNATURE_FILE).read_text())
        for side in ("inputs", "outputs"):
            data[side] = tuple(map(tensor_spec, data[side]))
        data["tolerance"] = Tolerance(**data["tolerance"])
        scores = data.pop("class_scores", None)
        if isinstance(scores, dict):  # older versions wrote a flag, or nothing
            maps = tuple(scores.get("maps", ()))  # older versions wrote none
            data["class_scores"] = ClassScores(**{**scores, "maps": maps})
        return cls(**data)
