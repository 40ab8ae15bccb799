"""Sets of operators: names of the default one, and the versions that a model asks for."""

from __future__ import annotations

import onnx

#: Both names of the default domain.
DEFAULT_DOMAINS = ("", "ai.onnx")
#: The domain of classical machine learning.
ML_DOMAIN = "ai.onnx.ml"


def is_default(node: onnx.NodeProto) -> bool:
    """Return whether the operator of ``node`` is one of ONNX's own."""
    return node.domain in DEFAULT_DOMAINS


def opset(model: onnx.ModelProto) -> int:
    """Return the version of the default set; 1 where the model names none."""
    versions = [entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS]
    return versions[0] if versions else 1


def ml_opset(model: onnx.ModelProto) -> int:
    """Return the version of ai.onnx.ml; 1 where the model names none."""
    versions = [entry.version for entry in model.opset_import if entry.domain == ML_DOMAIN]
    return versions[0] if versions else 1
