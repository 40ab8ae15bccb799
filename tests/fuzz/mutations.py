"""Structure-aware mutations of ONNX models; each changes a model in place.

A mutation takes the model, a random generator, and the files beside the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx
from onnx import helper

from tests.fuzz.bombs import BOMBS
from tests.fuzz.constant_mutations import (
    change_constant_shape,
    change_numbers,
    external,
    repeat_constant,
    retype_constant,
    sparse_constant,
    spoil_tensor,
    string_tensor,
)
from tests.fuzz.graph_mutations import (
    add_attribute,
    change_arity,
    change_attribute,
    change_dim,
    change_domain,
    change_input_dims_alike,
    change_inputs,
    change_kind,
    change_operator,
    change_outputs,
    change_shape,
    change_type,
    drop_attribute,
    drop_node,
    insert_binary,
    insert_unary,
    refer_attribute,
    rename_everywhere,
    rename_one,
    repeat_node,
    retype_attribute,
    rewire,
    shuffle_nodes,
    swap_inputs,
)

Files = dict[str, bytes]
Mutation = Callable[[onnx.ModelProto, random.Random, Files], None]


def change_opset(model, chance, files):
    """Change the opset or IR version: another, none, or two."""
    kind = chance.randrange(5)
    if kind == 0:
        del model.opset_import[:]
    elif kind == 1:
        model.opset_import.add(domain="", version=chance.choice([1, 9, 21]))
    elif kind == 2:
        model.ir_version = chance.choice([-1, 0, 1, 2, 3, 4, 8, 10, 13, 99, 2**62])
    elif model.opset_import:
        versions = [*range(1, 28), -1, 0, 99, 2**31, 2**63 - 1]
        model.opset_import[0].version = chance.choice(versions)


def as_function(model, chance, files):
    """Make a node a local function: valid, recursive, missing or shadowing."""
    graph = model.graph
    if not graph.node:
        return
    at = chance.randrange(len(graph.node))
    inner = onnx.NodeProto()
    inner.CopyFrom(graph.node[at])
    names = [f"i{k}" for k in range(len(inner.input))]
    results = [f"o{k}" for k in range(len(inner.output))]
    call = graph.node[at]
    del call.attribute[:]
    domain = chance.choice(["local", "local", "local", "", "com.microsoft", "a\nb"])
    call.domain, call.op_type = domain, chance.choice(["F", "F", "Relu", "f\x1bg", ""])
    del inner.input[:], inner.output[:]
    inner.input.extend(names)
    inner.output.extend(results)
    function = helper.make_function(
        domain, call.op_type, names, results, [inner], list(model.opset_import)
    )
    kind = chance.randrange(6)
    if kind == 0:  # recursive
        function.node[0].domain, function.node[0].op_type = domain, call.op_type
    elif kind == 1:
        del function.opset_import[:]
    elif kind == 2 and function.input:
        del function.input[0]
    elif kind == 3:
        function.node.add()
    model.functions.append(function)
    if chance.random() < 0.2:
        model.functions.append(function)
    if chance.random() < 0.8:
        model.opset_import.add(domain=domain, version=1)


def empty_graph(model, chance, files):
    """Empty the graph, or nearly so."""
    fields = ["node", "input", "output", "initializer"]
    for field in chance.sample(fields, chance.randrange(1, 4)):
        del getattr(model.graph, field)[:]


def drop_bomb(model, chance, files):
    """Add nodes that ask for excessive memory or time."""
    chance.choice(BOMBS)(model, chance)


def nothing(model, chance, files):
    """Leave the model unchanged: its results must be right."""


WEIGHTS: dict[Mutation, int] = {
    rename_everywhere: 6, rename_one: 6, change_dim: 6, change_shape: 3, change_type: 5,
    change_kind: 3, change_input_dims_alike: 6, change_attribute: 9, retype_attribute: 4,
    drop_attribute: 4, add_attribute: 5, refer_attribute: 1, rewire: 6, change_arity: 4,
    swap_inputs: 4, change_operator: 9, change_domain: 3, drop_node: 3, repeat_node: 2,
    shuffle_nodes: 3, insert_unary: 14, insert_binary: 12, change_outputs: 5, change_inputs: 4,
    spoil_tensor: 5, change_numbers: 9, change_constant_shape: 5, retype_constant: 4,
    string_tensor: 1, repeat_constant: 3, sparse_constant: 3, external: 7, change_opset: 4,
    as_function: 5, empty_graph: 1, drop_bomb: 4, nothing: 1,
}  # fmt: skip
