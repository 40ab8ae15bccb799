"""Import ONNX models to Relax, and report all unsupported operators at once."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import tvm
from onnx import version_converter
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from tvmopt.errors import UnsupportedOperatorError, after_retry, last_line
from tvmopt.frontend.converters import CONVERTERS
from tvmopt.frontend.layers import Layer, layer_table
from tvmopt.frontend.library_errors import CONVERTER_ERRORS, ONNX_ERRORS
from tvmopt.frontend.operator_sets import ml_opset, opset
from tvmopt.frontend.partition import Segment, dynamic_nodes, partition
from tvmopt.frontend.support import Unsupported, describe, failing_nodes, unknown_operators
from tvmopt.transform.anchors import anchors, is_anchor, with_layers
from tvmopt.transform.safe_indices import safe_take

_NEW_OPSET = 17


def import_onnx(model: onnx.ModelProto, layers: Sequence[Layer] | None = None) -> tvm.IRModule:
    """Import a prepared model; weights become constants of the module.

    Args:
        model: A prepared model, or one derived from it.
        layers: Layer table with the indices for the module's anchors; by default the table of
            ``model``. A quantized model uses the float model's table, matched by node name.

    Raises:
        UnsupportedOperatorError: When operators are not supported; lists all of them by node.
    """
    unknown = unknown_operators(model)
    if unknown:
        known = {item.node for item in unknown}
        more = [f for f in failing_nodes(model, _import_some_opset) if f.node not in known]
        raise UnsupportedOperatorError(describe(unknown + more))
    try:
        numbered = layer_table(model) if layers is None else layers
        return _import_some_opset(model, {layer.name: layer.index for layer in numbered})
    except CONVERTER_ERRORS as error:
        found = failing_nodes(model, _import_some_opset)
        if not found:
            raise _whole_graph(error) from error
        raise UnsupportedOperatorError(describe(found)) from error


@dataclasses.dataclass(frozen=True)
class Imported:
    """An imported module.

    Attributes:
        mod: The module.
        segments: Parts of the model that ONNX Runtime runs; empty where all is compiled.
    """

    mod: tvm.IRModule
    segments: tuple[Segment, ...] = ()


def import_with_segments(
    model: onnx.ModelProto,
    layers: Sequence[Layer] | None = None,
    others: Sequence[Unsupported] = (),
) -> Imported:
    """Import a prepared model; nodes that cannot be imported become segments for ONNX Runtime.

    Args:
        model: As for :func:`import_onnx`.
        layers: As for :func:`import_onnx`.
        others: Further nodes for ONNX Runtime.

    Raises:
        UnsupportedOperatorError: When a value between both has no static shape, or the importer
            fails on the graph as a whole. Names what failed first, too.
    """
    numbered = layer_table(model) if layers is None else layers
    indices = {layer.name: layer.index for layer in numbered}
    unknown = unknown_operators(model)
    first = UnsupportedOperatorError(describe(unknown)) if unknown else None
    found = [*unknown, *others]
    parted, segments = model, list[Segment]()
    # Few nodes first: finding those that fail imports every node on its own.
    steps: tuple[Callable[[onnx.ModelProto], list[Unsupported]], ...]
    steps = (lambda _: [], dynamic_nodes, _failing)
    try:
        for further in steps:
            known = {item.node for item in found}
            more = [item for item in further(model) if item.node not in known]
            if found and not more and segments:
                continue
            found += more
            if found:
                parted, segments = partition(model, found)
            try:
                return Imported(_import_some_opset(parted, indices), tuple(segments))
            except CONVERTER_ERRORS as error:
                first = first or _whole_graph(error)
        return Imported(import_onnx(parted, numbered), tuple(segments))
    except UnsupportedOperatorError as error:
        if first is None:
            raise
        nodes = f"{len(found)} node(s) in ONNX Runtime" if found else "each node alone"
        raise after_retry(first, nodes, error) from error


def _whole_graph(error: Exception) -> UnsupportedOperatorError:
    """Return the error that the importer fails on the graph as a whole."""
    found = Unsupported("(whole graph)", "", last_line(error))
    return UnsupportedOperatorError(describe([found]))


def not_compilable(
    model: onnx.ModelProto, check: Callable[[onnx.ModelProto], object]
) -> list[Unsupported]:
    """Return the nodes that fail ``check`` alone, and nodes of dynamic shapes.

    Args:
        model: A prepared model.
        check: Raises where a model of one node fails.
    """
    dynamic = dynamic_nodes(model)
    known = {item.node for item in dynamic}
    return dynamic + [item for item in failing_nodes(model, check) if item.node not in known]


def _failing(model: onnx.ModelProto) -> list[Unsupported]:
    return failing_nodes(model, _import_some_opset)


def _import_some_opset(
    model: onnx.ModelProto, indices: dict[str, int] | None = None
) -> tvm.IRModule:
    """Import the model as it is; on failure, retry after conversion to a newer opset.

    Some converters are wrong for old opsets (Slice with attributes, for one).
    """
    try:
        return quiet_from_onnx(model, indices)
    except CONVERTER_ERRORS:
        if opset(model) >= _NEW_OPSET:
            raise
        # The reported error is the original model's.
        with contextlib.suppress(*CONVERTER_ERRORS, *ONNX_ERRORS):
            newer = version_converter.convert_version(model, _NEW_OPSET)
            return quiet_from_onnx(newer, indices)
        raise


def quiet_from_onnx(model: onnx.ModelProto, indices: dict[str, int] | None = None) -> tvm.IRModule:
    """Run TVM's importer without its output, which names each tensor that it renames.

    With ``indices``, the layer indices by node name, the anchors get their layers.
    """
    importer = _LabellingImporter({}, {}, keep_params_in_input=False)
    importer.ml_opset = ml_opset(model)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Renaming name")
        mod = importer.from_onnx(model.graph, opset(model))
    found = anchors(mod)
    names = [importer.names.get(a.call) or importer.names.get(a.var, "") for a in found]
    if indices is None or not indices.keys() >= set(names):
        return mod
    return with_layers(mod, names, [indices[name] for name in names])


class _LabellingImporter(ONNXGraphImporter):
    """TVM's importer, extended to record the ONNX node of every anchor.

    It binds the result of each node immediately; TVM's importer binds it at first use.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.names: dict[relax.Expr, str] = {}
        self.ml_opset = 1
        self._seen: set[relax.Var] = set()

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Accept operators that only :meth:`_convert_operator` knows; it refuses all others."""

    def _convert_operator(
        self, op_name: str, inputs: list[relax.Expr], attrs: dict[str, Any], version: int
    ) -> relax.Expr:
        attrs["tvm_custom"]["opset"] = version
        attrs["tvm_custom"]["ml_opset"] = self.ml_opset
        converter = CONVERTERS.get(op_name)
        result = None if converter is None else converter(self.bb, inputs, attrs)
        if result is None:
            result = super()._convert_operator(op_name, inputs, attrs, version)
        if op_name == "Gather":  # TVM warns of takes in its fast mode whenever it lowers them
            result = self.bb.normalize(safe_take(result, self.bb.lookup_binding))
        if isinstance(result, relax.Call) and isinstance(result.ty, relax.TensorType):
            result = self.bb.emit(result)
        self._label(result, attrs["tvm_custom"]["name"])
        return result

    def _convert_subgraph(self, bb: relax.BlockBuilder, graph: onnx.GraphProto) -> relax.Expr:
        """Return a branch that holds its nodes; TVM's importer leaves all but the last outside."""
        bb._begin_binding_block()
        try:
            result = bb.normalize(super()._convert_subgraph(bb, graph))
        finally:
            block = bb._end_block()
        return relax.SeqExpr([block], result)

    def _label(self, expr: relax.Expr, name: str) -> None:
        if isinstance(expr, relax.Var):
            if expr in self._seen:
                return
            self._seen.add(expr)
            bound = self.bb.lookup_binding(expr)
            if bound is None:
                return
            if is_anchor(bound):
                self.names[expr] = self.names.get(bound, name)
            expr = bound
        if isinstance(expr, relax.Call):
            if is_anchor(expr):
                self.names.setdefault(expr, name)
            for arg in expr.args:
                self._label(arg, name)
        elif isinstance(expr, relax.Tuple):
            for field in expr.fields:
                self._label(field, name)
        elif isinstance(expr, relax.TupleGetItem):
            self._label(expr.tuple_value, name)
