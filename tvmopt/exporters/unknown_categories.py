"""Let one-hot encoders take unknown categories where the interface refuses them before.

before -> after: ``OneHotEncoder(zeros=0)``, which fails at run time -> ``OneHotEncoder(zeros=1)``,
which compiled code computes. scikit-learn's ``handle_unknown="error"`` is exported as the former.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx


def strict_encoders(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the one-hot encoders that fail on unknown categories."""
    return [
        node
        for node in model.graph.node
        if node.op_type == "OneHotEncoder"
        and any(a.name == "zeros" and a.i == 0 for a in node.attribute)
    ]


def accept_unknown(model: onnx.ModelProto, is_guarded: Callable[[], bool]) -> None:
    """Let the one-hot encoders of ``model`` accept unknown categories, in place.

    Args:
        model: The model.
        is_guarded: Returns whether the interface refuses every category that an encoder does not
            know; called only where there is a strict encoder.
    """
    strict = strict_encoders(model)
    if not strict or not is_guarded():
        return
    for node in strict:
        kept = [a for a in node.attribute if a.name != "zeros"]
        del node.attribute[:]
        node.attribute.extend(kept)
