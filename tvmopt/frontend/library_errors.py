"""Errors by which ONNX, ONNX Runtime and TVM's importer refuse a model or its inputs.

None of them has a common class for its errors. A fault of this program (NameError, ImportError) or
of the machine (MemoryError, OSError) is in no group here, so that it is not taken for a refusal.
"""

from __future__ import annotations

import onnx
from google.protobuf.message import Error as ProtobufError

from tvmopt.errors import TvmoptError

#: What ``onnx.checker``, ``onnx.shape_inference``, ``onnx.version_converter`` and
#: ``onnx.inliner`` raise. RuntimeError and ValueError come from their C++ code.
ONNX_ERRORS: tuple[type[Exception], ...] = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    onnx.version_converter.ConvertError,
    ProtobufError,
    RuntimeError,
    TypeError,
    ValueError,
)

#: What TVM's importer and the converters of operators raise on a node that they cannot convert:
#: TVM's own errors are RuntimeErrors, and a missing input or attribute fails where it is used.
CONVERTER_ERRORS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TvmoptError,
    TypeError,
    ValueError,
)


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """Return what ONNX Runtime raises when it loads or runs a model: its own and Python's errors.

    A function, since ONNX Runtime is imported only where it runs.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = [
        kind
        for kind in vars(state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    return (*own, RuntimeError, TypeError, ValueError)
