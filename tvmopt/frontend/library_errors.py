"""Errors that ONNX, ONNX Runtime and TVM's importer raise on a model or inputs they refuse.

None of them has a common class for its errors. A fault of this program (NameError, ImportError) or
of the machine (MemoryError, OSError) is in no group here, so that it is not taken for a refusal.
"""

from __future__ import annotations

import onnx
from google.protobuf.message import Error as ProtobufError

from tvmopt.errors import TVM_ERRORS, TvmoptError

# What pybind11 makes of exceptions of C++, and Python code of a wrong argument.
_OF_PYTHON = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)

#: What ``onnx.checker``, ``onnx.shape_inference``, ``onnx.version_converter``, ``onnx.inliner`` and
#: ``onnx.numpy_helper`` raise.
ONNX_ERRORS: tuple[type[Exception], ...] = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    onnx.version_converter.ConvertError,
    ProtobufError,
    *_OF_PYTHON,
)

#: What TVM's importer and our converters of operators raise on a node that they cannot convert.
CONVERTER_ERRORS: tuple[type[Exception], ...] = (*TVM_ERRORS, TvmoptError)


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
    return (*own, *_OF_PYTHON)
