"""ONNX LRN as one call, see :mod:`tvmopt.transform.response_norm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax

from tvmopt.kernels.response_norm import ResponseNorm
from tvmopt.transform.integer.values import static_shape
from tvmopt.transform.response_norm import response_norm_call


def local_response_norm(
    builder: relax.BlockBuilder, data: relax.Expr, attributes: Mapping[str, Any]
) -> relax.Expr:
    """Return the LRN of ``data``.

    Args:
        builder: Block builder to emit into.
        data: (N, C, ...), of static shape.
        attributes: Attributes of the ONNX node.

    Raises:
        ValueError: When the shape is not static.
    """
    data = builder.normalize(data)
    if static_shape(data) is None:
        raise ValueError("shapes must be static")
    norm = ResponseNorm(
        axis=1,
        size=int(attributes["size"]),
        alpha=float(attributes.get("alpha", 1e-4)),
        beta=float(attributes.get("beta", 0.75)),
        bias=float(attributes.get("bias", 1.0)),
    )
    return builder.normalize(response_norm_call(norm, data))
