"""Clip with constant bounds, as numbers in the kernels.

TVM's importer reads the bounds as tensors. Such a bound may be NaN for all that a kernel knows, so
keeping NaN costs two instructions each, where a number costs none
(:mod:`tvmopt.kernels.passes.keep_nan`).
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.frontend.converters.node import Attributes, Inputs
from tvmopt.transform.precision.anchor_call import constant_data


def clip(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr | None:
    """Return ``x`` between two bounds; None where a bound is not constant, or no input.

    A bound of NaN is none, as in ONNX Runtime.

    Args:
        builder: Block builder to emit into.
        inputs: x, and optionally the lower and the upper bound; None for one that is left out.
        attributes: None are read.
    """
    result, *bounds = inputs
    if result is None or not any(bound is not None for bound in bounds):
        return None
    dtype = str(result.ty.dtype)
    for bound, extremum in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=False):
        if bound is None:
            continue
        data = constant_data(bound)
        array = None if data is None else data.numpy()
        if array is None or array.size != 1 or str(array.dtype) != dtype:
            return None
        value = array.reshape(())
        if not np.isnan(value.astype("float64")):
            result = extremum(result, relax.const(value.copy(), dtype))
    return builder.normalize(result)
