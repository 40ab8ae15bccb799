"""ONNX -> Relax, with every operator that cannot come along reported at once."""

from __future__ import annotations

import contextlib
import io

import onnx
import tvm
from tvm.relax.frontend.onnx import from_onnx

from tvmopt.errors import UnsupportedOperatorError
from tvmopt.frontend.support import Unsupported, describe, failing_nodes, unknown_operators


def import_onnx(model: onnx.ModelProto) -> tvm.IRModule:
    """Import a prepared model; weights become constants of the module.

    Raises:
        UnsupportedOperatorError: Naming every operator that could not be imported, with its nodes.
    """
    unknown = unknown_operators(model)
    if unknown:
        known = {item.node for item in unknown}
        more = [f for f in failing_nodes(model, quiet_from_onnx) if f.node not in known]
        raise UnsupportedOperatorError(describe(unknown + more))
    try:
        module = quiet_from_onnx(model)
    except Exception as error:
        found = failing_nodes(model, quiet_from_onnx)
        if not found:
            reason = _one_line(error)
            found = [Unsupported("(whole graph)", "", reason)]
        raise UnsupportedOperatorError(describe(found)) from error
    return module


def quiet_from_onnx(model: onnx.ModelProto) -> tvm.IRModule:
    """TVM's importer without its chatter on standard output."""
    with contextlib.redirect_stdout(io.StringIO()):
        return from_onnx(model, keep_params_in_input=False)


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
