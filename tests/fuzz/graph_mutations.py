"""Mutations of names, shapes, types, attributes, nodes and edges of an ONNX model.

Each mutation takes the model, a random generator, and the files beside the model.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tests.fuzz.constant_mutations import spoil
from tests.fuzz.pick import (
    floats_of,
    graphs,
    some_graph,
    some_name,
    some_node,
    some_tensor,
    some_value,
)
from tests.fuzz.vocabulary import (
    ATTRIBUTES,
    BINARY,
    DIMS,
    DOMAINS,
    FLOATS,
    INTS,
    NAMES,
    STRANGE,
    TEXTS,
    UNARY,
)

# Names


def rename_everywhere(model, chance, files):
    """Rename a value wherever it is used."""
    old, new = some_name(model, chance), chance.choice(NAMES)
    for graph in graphs(model.graph):
        for item in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            if item.name == old:
                item.name = new
        for node in graph.node:
            for names in (node.input, node.output):
                for at, name in enumerate(names):
                    if name == old:
                        names[at] = new


def rename_one(model, chance, files):
    """Replace a name in one place."""
    kind = chance.randrange(9)
    name = chance.choice(NAMES) if chance.random() < 0.6 else some_name(model, chance)
    if kind == 0:
        some_value(model, chance).name = name
    elif kind == 1:
        some_tensor(model, chance).name = name
    elif kind == 2:
        some_node(model, chance).name = name
    elif kind == 3:
        some_graph(model, chance).name = name
    elif kind == 4:
        dims = some_value(model, chance).type.tensor_type.shape.dim
        if dims:
            chance.choice(dims).dim_param = name
    elif kind == 5:
        some_node(model, chance).domain = name
    elif kind == 6:
        node = some_node(model, chance)
        if node.attribute:
            chance.choice(node.attribute).name = name
    elif kind == 7:
        model.metadata_props.add(key=name, value=chance.choice(NAMES))
        model.producer_name = model.doc_string = chance.choice(NAMES)
    else:
        node = some_node(model, chance)
        node.doc_string = node.overload = name


# Shapes and types


def change_dim(model, chance, files):
    """Change or remove a dimension of an input, output or inner value."""
    shape = some_value(model, chance).type.tensor_type.shape
    if not shape.dim or chance.random() < 0.15:
        shape.dim.add().dim_value = chance.choice(DIMS)
    elif chance.random() < 0.15:
        del shape.dim[chance.randrange(len(shape.dim))]
    else:
        chance.choice(shape.dim).dim_value = chance.choice(DIMS)


def change_shape(model, chance, files):
    """Remove shape or rank of a value, or give it very many dimensions."""
    tensor = some_value(model, chance).type.tensor_type
    kind = chance.randrange(3)
    if kind == 0:
        tensor.ClearField("shape")
    elif kind == 1:
        del tensor.shape.dim[:]
        tensor.shape.SetInParent()
    else:
        for _ in range(chance.choice([1, 5, 64, 300])):
            tensor.shape.dim.add().dim_value = 1


def change_type(model, chance, files):
    """Change the dtype of a value."""
    kind = chance.choice([*range(28), 100, -1])
    some_value(model, chance).type.tensor_type.elem_type = kind


def change_kind(model, chance, files):
    """Make a value a sequence, map, optional, sparse tensor, or untyped."""
    value = some_value(model, chance)
    old = onnx.TypeProto()
    old.CopyFrom(value.type)
    kind = chance.randrange(5)
    value.type.Clear()
    if kind == 0:
        value.type.sequence_type.elem_type.CopyFrom(old)
    elif kind == 1:
        value.type.map_type.key_type = TensorProto.STRING
        value.type.map_type.value_type.CopyFrom(old)
    elif kind == 2:
        value.type.optional_type.elem_type.CopyFrom(old)
    elif kind == 3:
        value.type.sparse_tensor_type.elem_type = TensorProto.FLOAT


def change_input_dims_alike(model, chance, files):
    """Give an input other small sizes, which the model may accept."""
    inputs = [v for v in model.graph.input if v.type.tensor_type.shape.dim]
    if inputs:
        chance.choice(chance.choice(inputs).type.tensor_type.shape.dim).dim_value = chance.choice(
            [1, 2, 3, 4, 5, 6, 9, 16, 33]
        )
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")


# Attributes


def change_attribute(model, chance, files):
    """Change the value of an attribute within its type."""
    nodes = [n for graph in graphs(model.graph) for n in graph.node if n.attribute]
    if not nodes:
        return
    attribute = chance.choice(chance.choice(nodes).attribute)
    small = chance.random() < 0.6
    if attribute.type == AttributeProto.INT:
        attribute.i = chance.choice([-1, 0, 1, 2, 3]) if small else chance.choice(INTS)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = chance.choice(FLOATS)
    elif attribute.type == AttributeProto.STRING:
        text = chance.choice(TEXTS).encode("utf-8", "replace")
        attribute.s = chance.choice([text, b"\xff\xfe", b""]) if chance.random() < 0.3 else text
    elif attribute.type == AttributeProto.INTS and attribute.ints:
        kind = chance.randrange(4)
        if kind == 0:
            del attribute.ints[chance.randrange(len(attribute.ints))]
        elif kind == 1:
            attribute.ints.append(chance.choice(INTS))
        else:
            value = chance.choice([-1, 0, 1, 2, 3]) if small else chance.choice(INTS)
            attribute.ints[chance.randrange(len(attribute.ints))] = value
    elif attribute.type == AttributeProto.TENSOR:
        spoil(attribute.t, chance)
    else:
        retype_attribute(model, chance, files)


def retype_attribute(model, chance, files):
    """Change the type of an attribute, or only its declared type."""
    node = some_node(model, chance)
    name = chance.choice(node.attribute).name if node.attribute else chance.choice(ATTRIBUTES)
    if node.attribute and chance.random() < 0.3:
        chance.choice(node.attribute).type = chance.choice([*range(15)])
        return
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.append(_attribute(name, model, chance))


def _attribute(name, model, chance):
    values = [
        chance.choice(INTS), chance.choice(FLOATS), chance.choice(TEXTS),
        [chance.choice(INTS) for _ in range(chance.randrange(1, 5))],
        [chance.choice(FLOATS) for _ in range(chance.randrange(1, 5))],
        [chance.choice(TEXTS) for _ in range(chance.randrange(1, 3))],
        numpy_helper.from_array(np.array(chance.choice(FLOATS), np.float32), "t"), model.graph,
    ]  # fmt: skip
    try:
        return helper.make_attribute(name or "a", chance.choice(values))
    except (ValueError, TypeError):
        return AttributeProto(name=name, type=AttributeProto.INT, i=1)


def drop_attribute(model, chance, files):
    """Remove or duplicate an attribute."""
    node = some_node(model, chance)
    if node.attribute:
        at = chance.randrange(len(node.attribute))
        if chance.random() < 0.7:
            del node.attribute[at]
        else:
            node.attribute.append(node.attribute[at])


def add_attribute(model, chance, files):
    """Add an attribute to a node."""
    node, name = some_node(model, chance), chance.choice(ATTRIBUTES)
    if chance.random() < 0.5:
        node.attribute.append(helper.make_attribute(name, chance.choice([-1, 0, 1, 2])))
    else:
        node.attribute.append(_attribute(name, model, chance))


def refer_attribute(model, chance, files):
    """Make an attribute refer to an attribute of a missing function."""
    node = some_node(model, chance)
    node.attribute.add(name=chance.choice(ATTRIBUTES), ref_attr_name="a", type=chance.randrange(15))


# Nodes and edges


def rewire(model, chance, files):
    """Connect an input of a node to another value: earlier, later (a cycle), itself, or none."""
    node = some_node(model, chance)
    if node.input:
        node.input[chance.randrange(len(node.input))] = (
            "" if chance.random() < 0.1 else some_name(model, chance)
        )


def change_arity(model, chance, files):
    """Add, remove or repeat an input or output of a node."""
    node = some_node(model, chance)
    names = node.input if chance.random() < 0.7 else node.output
    kind = chance.randrange(4)
    if kind == 0 and names:
        del names[chance.randrange(len(names))]
    elif kind == 1:
        names.append(some_name(model, chance))
    elif kind == 2 and names:
        names.append(names[0])
    else:
        del names[:]


def swap_inputs(model, chance, files):
    """Swap two inputs of a node."""
    node = some_node(model, chance)
    if len(node.input) > 1:
        a, b = chance.sample(range(len(node.input)), 2)
        node.input[a], node.input[b] = node.input[b], node.input[a]


def change_operator(model, chance, files):
    """Change the operator of a node."""
    node = some_node(model, chance)
    node.op_type = chance.choice(chance.choice([UNARY, BINARY, BINARY, STRANGE]))
    if chance.random() < 0.5:
        del node.attribute[:]


def change_domain(model, chance, files):
    """Change the domain of a node, to a declared or unknown one."""
    domain = chance.choice(DOMAINS)
    some_node(model, chance).domain = domain
    if chance.random() < 0.7:
        model.opset_import.add(domain=domain, version=chance.choice([1, 1, 2, 3, 100]))


def drop_node(model, chance, files):
    """Remove a node."""
    graph = some_graph(model, chance)
    if graph.node:
        del graph.node[chance.randrange(len(graph.node))]


def repeat_node(model, chance, files):
    """Duplicate a node, with the same or new outputs."""
    graph = some_graph(model, chance)
    if graph.node:
        node = graph.node.add()
        node.CopyFrom(chance.choice(graph.node[:-1]) if len(graph.node) > 1 else graph.node[0])
        if chance.random() < 0.5:
            for at, name in enumerate(node.output):
                node.output[at] = f"{name}_2"


def shuffle_nodes(model, chance, files):
    """Shuffle the nodes."""
    graph = some_graph(model, chance)
    nodes = list(graph.node)
    chance.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def insert_unary(model, chance, files):
    """Insert an operator between a value and its users."""
    name = chance.choice(floats_of(model) or [some_name(model, chance)])
    new = f"{name}_new"
    for node in model.graph.node:
        for at, used in enumerate(node.input):
            if used == name:
                node.input[at] = new
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
        if output.name == name:
            output.name = new
    node = helper.make_node(chance.choice(UNARY), [name], [new], name=new)
    if node.op_type in ("Cast", "ArgMax", "Transpose", "Trilu") or chance.random() < 0.2:
        for key in chance.sample(["to", "axis", "keepdims", "alpha", "perm", "upper"], 2):
            value = {"alpha": chance.choice(FLOATS), "perm": [0, 1]}.get(
                key, chance.choice([-1, 0, 1, 2, 6, 7, 9, 10, 11])
            )
            node.attribute.append(helper.make_attribute(key, value))
    if node.op_type == "Cast" and not any(a.name == "to" for a in node.attribute):
        node.attribute.append(
            helper.make_attribute("to", chance.choice([1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16]))
        )
    if chance.random() < 0.3 and node.op_type in ("Shape", "ArgMax", "Equal", "IsNaN", "Cast"):
        model.graph.node.append(helper.make_node("Cast", [new], [f"{new}_back"], to=1))
    producers = [i for i, n in enumerate(model.graph.node) if name in n.output]
    model.graph.node.insert(producers[0] + 1 if producers else 0, node)


def insert_binary(model, chance, files):
    """Add a graph output: an operator of two values of the model."""
    names = floats_of(model) or [""]
    other = chance.choice([chance.choice(names), some_name(model, chance)])
    node = helper.make_node(
        chance.choice(BINARY), [chance.choice(names), other], ["extra"], name="extra"
    )
    if chance.random() < 0.5 or node.op_type in ("Concat",):
        node.attribute.append(helper.make_attribute("axis", chance.choice([-2, -1, 0, 1, 2])))
    model.graph.node.append(node)
    model.graph.output.append(helper.make_empty_tensor_value_info("extra"))


def change_outputs(model, chance, files):
    """Change the graph outputs: inner values, inputs, constants, duplicates, none."""
    kind = chance.randrange(4)
    if kind == 0 and model.graph.output:
        del model.graph.output[chance.randrange(len(model.graph.output))]
    elif kind == 1 and model.graph.output:
        model.graph.output.append(model.graph.output[0])
    else:
        model.graph.output.append(helper.make_empty_tensor_value_info(some_name(model, chance)))


def change_inputs(model, chance, files):
    """Change the graph inputs: remove, duplicate, add an unused one, list a constant."""
    kind = chance.randrange(4)
    inputs = model.graph.input
    if kind == 0 and inputs:
        del inputs[chance.randrange(len(inputs))]
    elif kind == 1 and inputs:
        inputs.append(inputs[0])
    elif kind == 2:
        inputs.append(helper.make_tensor_value_info("unused", chance.randrange(1, 13), [2]))
    else:
        tensor = some_tensor(model, chance)
        kinds = (tensor.data_type or 1, list(tensor.dims))
        inputs.append(helper.make_tensor_value_info(tensor.name, *kinds))
