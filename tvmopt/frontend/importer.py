"""ONNX -> Relax, with every operator that cannot come along reported at once."""

from __future__ import annotations

import contextlib
import io

import onnx
import tvm
from onnx import version_converter
from tvm.relax.frontend.onnx import from_onnx

from tvmopt.errors import UnsupportedOperatorError
from tvmopt.frontend.support import Unsupported, describe, failing_nodes, unknown_operators

_NEW_OPSET = 17


def import_onnx(model: onnx.ModelProto) -> tvm.IRModule:
    """Import a prepared model; weights become constants of the module.

    Raises:
        UnsupportedOperatorError: Naming every operator that could not be imported, with its nodes.
    """
    unknown = unknown_operators(model)
    if unknown:
        known = {item.node for item in unknown}
        more = [f for f in failing_nodes(model, _import_some_opset) if f.node not in known]
        raise UnsupportedOperatorError(describe(unknown + more))
    try:
        return _import_some_opset(model)
    except Exception as error:
        found = failing_nodes(model, _import_some_opset)
        if not found:
            found = [Unsupported("(whole graph)", "", _one_line(error))]
        raise UnsupportedOperatorError(describe(found)) from error


def _import_some_opset(model: onnx.ModelProto) -> tvm.IRModule:
    """Import as it is, else with the operators of a newer opset.

    Some converters are wrong for old opsets (Slice with attributes, for one).
    """
    try:
        return quiet_from_onnx(model)
    except Exception:
        opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
        if not 0 < opset < _NEW_OPSET:
            raise
        with contextlib.suppress(Exception):  # the failure to report is that of the model as it is
            return quiet_from_onnx(version_converter.convert_version(model, _NEW_OPSET))
        raise


def quiet_from_onnx(model: onnx.ModelProto) -> tvm.IRModule:
    """TVM's importer without its chatter on standard output."""
    with contextlib.redirect_stdout(io.StringIO()):
        return from_onnx(model, keep_params_in_input=False)


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
