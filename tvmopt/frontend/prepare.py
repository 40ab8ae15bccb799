"""Prepare an ONNX model for import: static shapes, folded constants.

before -> after: dynamic dimensions -> static ones. Shape arithmetic and BatchNormalization after
Conv -> constants, by ONNX Runtime's basic optimisation level, which stays in the default domain.
"""

from __future__ import annotations

import dataclasses
import graphlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from tvmopt import host
from tvmopt.errors import ModelError, in_one_line
from tvmopt.frontend.external import PROTOBUF_LIMIT, graphs
from tvmopt.frontend.functions import inline_functions
from tvmopt.frontend.inferred_shapes import with_inferred_shapes
from tvmopt.frontend.library_errors import onnxruntime_errors
from tvmopt.frontend.old_opsets import at_least_opset_7
from tvmopt.frontend.operator_sets import is_default, opset
from tvmopt.frontend.pairwise_scan import rewrite_pairwise_scans
from tvmopt.frontend.quantized_operators import rewrite_quantized
from tvmopt.frontend.shapes import Shapes, fix_input_shapes, graph_inputs
from tvmopt.frontend.support import known_operators
from tvmopt.frontend.unroll import LOOPS, unroll
from tvmopt.runtime.metadata import TensorSpec

if TYPE_CHECKING:
    import onnxruntime as ort


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A model ready for import.

    Attributes:
        reference: The user's model with static input shapes and at least opset 7, otherwise
            unchanged; the float reference for all comparisons.
        model: The same model, folded and with inferred shapes.
        input_shapes: Static shape of every input by name, in graph order.
    """

    reference: onnx.ModelProto
    model: onnx.ModelProto
    input_shapes: Shapes


def prepare(model: onnx.ModelProto, shapes: Shapes) -> Prepared:
    """Fix input shapes, fold constants and infer shapes; ``model`` itself does not change.

    Raises:
        ConfigError, ModelError: As :func:`tvmopt.frontend.shapes.fix_input_shapes`.
        ModelError: When ONNX Runtime cannot load the model, a node such as Concat leaves out one
            of its inputs, or an old model cannot be converted to opset 7.
    """
    reference, fixed = _with_shapes(model, shapes)
    if reference.ByteSize() > PROTOBUF_LIMIT:
        raise ModelError(
            "model must be under 2 GiB with its weights, "
            f"but got {reference.ByteSize() / 2**30:.1f} GiB"
            "; export it with weights of 16 bits or fewer"
        )
    for output in model.graph.output:
        kind = output.type.WhichOneof("value")
        if kind not in ("tensor_type", None):
            raise ModelError(
                f"model outputs must be tensors, but {output.name!r} is a {kind}; remove the "
                "post-processing (ZipMap and the like) from the model"
            )
    folded = _fold(inline_functions(reference, known_operators()))
    if any(node.op_type == "Shape" for node in folded.graph.node):
        folded = _fold(folded)  # of functions that ONNX Runtime has inlined after its folding
    rewrite_pairwise_scans(folded)
    folded = _unrolled(folded)
    _sort_nodes(folded.graph)
    rewrite_quantized(folded)
    _rename_new_constants(folded.graph, {i.name for i in reference.graph.initializer})
    _name_nodes(folded.graph)
    folded = with_inferred_shapes(folded, session_options(folded))
    return Prepared(reference, folded, fixed)


def with_free_rows(model: onnx.ModelProto, specs: Sequence[TensorSpec]) -> onnx.ModelProto:
    """Return a copy of a model whose inputs are static but for their first axis.

    Args:
        model: The model as its file has it.
        specs: Its inputs with static shapes.
    """
    free, _ = _with_shapes(model, {spec.name: spec.shape for spec in specs})
    for value in graph_inputs(free):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    return free


def _with_shapes(model: onnx.ModelProto, shapes: Shapes) -> tuple[onnx.ModelProto, Shapes]:
    """Return a copy of ``model`` of at least opset 7 with static inputs, and their shapes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(at_least_opset_7(model))
    if not copy.metadata_props:  # a conversion to a newer opset drops them
        copy.metadata_props.extend(model.metadata_props)
    _make_initializers_constant(copy)
    _drop_trailing_empty_inputs(copy)
    _check_variadic_inputs(copy)
    return copy, fix_input_shapes(copy, shapes)


def session_options(
    model: onnx.ModelProto | str, threads: int = 0, disabled: Sequence[str] = ()
) -> ort.SessionOptions:
    """Return options of a quiet ONNX Runtime session with ``threads`` threads .

    If the model pads before a pool, ONNX Runtime's Pad fusion is disabled. That fusion merges a
    zero pad into MaxPool, which pads with -inf, and creates pools with more padding than ONNX
    Runtime itself accepts.

    Args:
        model: The model, or its path.
        threads: Number of intra-op threads; 0 for one for each core that this process may run on.
        disabled: Names of further optimizers of ONNX Runtime that are disabled.
    """
    import onnxruntime as ort

    if isinstance(model, str):
        model = onnx.load_model(model, load_external_data=False)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # Otherwise the u8s8 GEMM of ONNX Runtime saturates on x86 CPUs without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    if _pads_a_pool(model.graph):
        disabled = ("Pad_Fusion", *disabled)
    if disabled:
        names = ";".join(disabled)
        options.add_session_config_entry("optimization.disable_specified_optimizers", names)
    if not threads and host.usable_cores() < (os.cpu_count() or 1):
        # ONNX Runtime's default is a thread for each core of the machine, bound to it: searches on
        # separate cores would all compute on the same ones.
        threads = host.usable_cores()
    if threads:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    return options


def _pads_a_pool(graph: onnx.GraphProto) -> bool:
    padded: set[str] = set()
    for node in graph.node:
        fed = bool(node.input) and node.input[0] in padded
        if node.op_type == "Pad" or (fed and node.op_type in ("Dropout", "Identity")):
            padded.update(node.output[:1])  # ONNX Runtime refuses a node without outputs
        if fed and node.op_type in ("AveragePool", "MaxPool"):
            return True
        if any(_pads_a_pool(a.g) for a in node.attribute if a.HasField("g")):
            return True
    return False


def _drop_trailing_empty_inputs(model: onnx.ModelProto) -> None:
    """Leave out optional inputs at the end instead of naming them "".

    ONNX Runtime 1.31 crashes on a LayerNormalization whose bias is "".
    """
    for graph in graphs(model.graph):
        for node in graph.node:
            while node.input and not node.input[-1]:
                del node.input[-1]


def _check_variadic_inputs(model: onnx.ModelProto) -> None:
    """Refuse nodes such as Concat that leave out one of many inputs by the name "".

    ONNX Runtime loads them, and TVM's importer crashes on them.

    Raises:
        ModelError: Names the node and the input.
    """
    for graph in graphs(model.graph):
        for node in graph.node:
            for place, name in enumerate(node.input):
                if not name and _is_variadic(node, place, model):
                    named = node.name or "".join(node.output[:1])
                    raise ModelError(
                        f"every input of {node.op_type} must be given, but node {named!r} leaves "
                        f"out input {place + 1}; remove it"
                    )


def _is_variadic(node: onnx.NodeProto, place: int, model: onnx.ModelProto) -> bool:
    """Return whether input ``place`` of a node is one of any number of inputs."""
    # A file may hold any number of 64 bits; ONNX Runtime has the last word on it.
    version = max(1, min(opset(model), onnx.defs.onnx_opset_version()))
    if not is_default(node) or not onnx.defs.has(node.op_type, max_inclusive_version=version):
        return False
    declared = onnx.defs.get_schema(node.op_type, version).inputs
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return bool(declared) and declared[min(place, len(declared) - 1)].option == variadic


def _make_initializers_constant(model: onnx.ModelProto) -> None:
    # Old models list their weights as inputs too, so that a caller can replace them. ONNX Runtime
    # does not fold replaceable weights.
    needed = list(graph_inputs(model))
    del model.graph.input[:]
    model.graph.input.extend(needed)
    model.ir_version = max(model.ir_version, 4)


def _rename_new_constants(graph: onnx.GraphProto, old: set[str]) -> None:
    # ONNX Runtime generates names such as gemm_input_shape_token_3. When it loads the model again,
    # it may generate one of them a second time, and fail.
    kept = old | {value.name for value in graph.output}
    new = {i.name: f"folded/{i.name}" for i in graph.initializer if i.name not in kept}
    for named in (*graph.initializer, *graph.value_info):
        named.name = new.get(named.name, named.name)
    _rename_inputs(graph, new)


def _rename_inputs(graph: onnx.GraphProto, new: dict[str, str]) -> None:
    for node in graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = new.get(name, name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename_inputs(attribute.g, new)


def _sort_nodes(graph: onnx.GraphProto) -> set[str]:
    """Sort nodes topologically, as ONNX requires; ONNX Runtime accepts any order.

    Returns:
        The outer names that the graph uses. Each subgraph is visited once.
    """
    used = [_used_names(node) for node in graph.node]
    producers = {name: at for at, node in enumerate(graph.node) for name in node.output if name}
    needs = [{producers[name] for name in names if name in producers} for names in used]
    if any(max(need, default=-1) >= at for at, need in enumerate(needs)):
        order = list(graphlib.TopologicalSorter(dict(enumerate(needs))).static_order())
        nodes = [graph.node[at] for at in order]
        del graph.node[:]
        graph.node.extend(nodes)
    own = {value.name for value in (*graph.input, *graph.initializer)} | producers.keys()
    return {output.name for output in graph.output}.union(*used) - own


def _used_names(node: onnx.NodeProto) -> set[str]:
    """Return the inputs of ``node``, and the outer names that its subgraphs use; sort these."""
    subgraphs = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return set(node.input).union(*map(_sort_nodes, subgraphs))


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Give every node without a unique name the name of its first output, which is unique."""
    seen: set[str] = set()
    for node in graph.node:
        if not node.name or node.name in seen:
            node.name = next(filter(None, node.output), node.op_type)
        seen.add(node.name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _name_nodes(attribute.g)


def _unrolled(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its loops unrolled where that can be, and folded again."""
    if not any(node.op_type in LOOPS for graph in graphs(model.graph) for node in graph.node):
        return model
    typed = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return _fold(typed) if unroll(typed) else model


def _fold(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxruntime as ort

    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        path = Path(folder) / "folded.onnx"
        # It makes a Gemm of MatMul and Add, between two reshapes over which TVM does not fuse.
        options = session_options(model, disabled=["MatMulAddFusion"])
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        try:
            ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except onnxruntime_errors() as error:
            raise ModelError(
                "model must load in ONNX Runtime, the reference, but it does not: "
                f"{in_one_line(error, 400)}"
                "; export it again"
            ) from error
        return onnx.load_model(str(path))
