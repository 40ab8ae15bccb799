"""Structure-aware mutations of ONNX models: each changes a model in place.

A mutation takes the model, a source of chance and the files that lie beside the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tests.fuzz.bombs import BOMBS

Files = dict[str, bytes]
Mutation = Callable[[onnx.ModelProto, random.Random, Files], None]

DIMS = (
    -(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 100, 2**16, 2**31 - 1, 2**31, 2**32, 10**12,
    2**63 - 1,
)  # fmt: skip
INTS = (*DIMS, 4, 5, 8, 10, 13)
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, -1e38, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
NAMES = (
    "", " ", "a\nb", "a\x1b[31mb", "a\x00b", "a\u202eb", "a,b", "a:b", "../x", "größe", "层",
    "x" * 5000, "%s%n{}", "'; drop table runs; --", "main", "None", "def", "a.b", "a/b",
    "0", "=1+1", "$x_{$",
    "gv", "lv", "tvm", "R.add", "\\", '"', "<b>", "|", "x", "y", "w", "folded/w", "input_0",
)  # fmt: skip
TEXTS = (*NAMES, "constant", "edge", "reflect", "linear", "cubic", "SAME_UPPER", "VALID", "NOTSET")
UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Elu", "Erf",
    "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Hardmax", "Identity", "IsInf", "IsNaN",
    "LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg", "NonZero", "Not", "Reciprocal", "Relu",
    "Round", "Selu", "Shape", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Softmax",
    "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu", "Transpose", "Flatten",
    "GlobalAveragePool", "GlobalMaxPool", "MeanVarianceNormalization", "Dropout", "ReduceSum",
    "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare", "ArgMax", "ArgMin", "Squeeze", "Cast", "BitwiseNot",
    "DynamicQuantizeLinear", "EyeLike", "Det", "LpNormalization", "ConstantOfShape", "Unique",
    "Trilu", "Celu", "LRN", "Swish",
)  # fmt: skip
BINARY = (
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mod", "MatMul", "Gemm", "And", "Or", "Xor",
    "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "PRelu", "Gather", "GatherND",
    "GatherElements", "Expand", "Reshape", "Tile", "Concat", "Sum", "Mean", "BitShift",
    "BitwiseAnd", "CumSum", "Compress", "OneHot", "Conv", "ConvTranspose", "MatMulInteger",
    "ReverseSequence", "GridSample", "CastLike", "Unsqueeze", "Split", "Pad", "Where",
)  # fmt: skip
STRANGE = (
    "Loop", "Scan", "If", "SequenceEmpty", "SequenceConstruct", "SequenceAt", "SequenceLength",
    "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceMap", "StringNormalizer",
    "TfIdfVectorizer", "RandomNormal", "RandomNormalLike", "RandomUniformLike", "Multinomial",
    "Bernoulli", "LSTM", "GRU", "RNN", "ImageDecoder", "RegexFullMatch", "StringConcat",
    "NonMaxSuppression", "MaxUnpool", "RoiAlign", "STFT", "DFT", "MelWeightMatrix",
    "BlackmanWindow",
    "Constant", "NoSuchOperator", "", "ai.onnx::Relu", "QLinearConv", "QLinearMatMul",
    "ConvInteger", "Attention", "MaxRoiPool", "Upsample", "Scatter", "ATen", "Col2Im",
    "AffineGrid", "GroupNormalization", "RMSNormalization", "DeformConv",
)  # fmt: skip
DOMAINS = (
    "ai.onnx", "com.microsoft", "ai.onnx.ml", "ai.onnx.training", "com.example", "a\nb",
    "ai.onnx.preview.training", "com.microsoft.nchwc", "local", "org.pytorch.aten",
)  # fmt: skip
ATTRIBUTES = (
    "axis", "axes", "keepdims", "perm", "alpha", "beta", "mode", "pads", "strides", "dilations",
    "group", "kernel_shape", "auto_pad", "ceil_mode", "count_include_pad", "to", "epsilon",
    "transA", "transB", "exclusive", "reverse", "largest", "sorted", "select_last_index",
    "noop_with_empty_axes", "value", "value_ints", "storage_order", "body", "then_branch",
    "coordinate_transformation_mode", "nearest_mode", "blocksize", "equation", "direction",
    "fmod", "start", "end", "allowzero", "output_shape", "output_padding", "batch_dims",
    "reduction", "training_mode", "p", "cubic_coeff_a", "antialias", "keep_aspect_ratio_policy",
    "num_outputs", "split", "saturate", "stash_type", "spatial", "consumed_inputs", "is_test",
)  # fmt: skip


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """``graph`` and all within it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def _graph(model, chance):
    return chance.choice(list(graphs(model.graph)))


def _node(model, chance):
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    return chance.choice(nodes) if nodes else model.graph.node.add()


def _tensor(model, chance):
    tensors = [t for graph in graphs(model.graph) for t in graph.initializer]
    return chance.choice(tensors) if tensors else model.graph.initializer.add()


def _value(model, chance):
    values = [
        v for graph in graphs(model.graph) for v in (*graph.input, *graph.output, *graph.value_info)
    ]
    return chance.choice(values) if values else model.graph.output.add()


def _some_name(model, chance):
    """A name that the model holds, mostly."""
    names = [n for graph in graphs(model.graph) for node in graph.node for n in node.output]
    names += [t.name for graph in graphs(model.graph) for t in graph.initializer]
    names += [v.name for graph in graphs(model.graph) for v in graph.input]
    return chance.choice(names) if names and chance.random() < 0.9 else chance.choice(NAMES)


def _floats_of(model):
    """Names of values that are float tensors, as far as shape inference can tell."""
    try:
        found = onnx.shape_inference.infer_shapes(model)
    except Exception:
        found = model
    graph = found.graph
    return [
        v.name
        for v in (*graph.input, *graph.value_info, *graph.output)
        if v.type.tensor_type.elem_type == TensorProto.FLOAT
    ]


# Names


def rename_everywhere(model, chance, files):
    """A value gets another name, wherever it is used."""
    old, new = _some_name(model, chance), chance.choice(NAMES)
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
    """A name of anything is exchanged at one place."""
    kind = chance.randrange(9)
    name = chance.choice(NAMES) if chance.random() < 0.6 else _some_name(model, chance)
    if kind == 0:
        _value(model, chance).name = name
    elif kind == 1:
        _tensor(model, chance).name = name
    elif kind == 2:
        _node(model, chance).name = name
    elif kind == 3:
        _graph(model, chance).name = name
    elif kind == 4:
        dims = _value(model, chance).type.tensor_type.shape.dim
        if dims:
            chance.choice(dims).dim_param = name
    elif kind == 5:
        _node(model, chance).domain = name
    elif kind == 6:
        node = _node(model, chance)
        if node.attribute:
            chance.choice(node.attribute).name = name
    elif kind == 7:
        model.metadata_props.add(key=name, value=chance.choice(NAMES))
        model.producer_name = model.doc_string = chance.choice(NAMES)
    else:
        node = _node(model, chance)
        node.doc_string = node.overload = name


# Shapes and types


def change_dim(model, chance, files):
    """A dimension of an input, output or inner value is another, or none."""
    shape = _value(model, chance).type.tensor_type.shape
    if not shape.dim or chance.random() < 0.15:
        shape.dim.add().dim_value = chance.choice(DIMS)
    elif chance.random() < 0.15:
        del shape.dim[chance.randrange(len(shape.dim))]
    else:
        chance.choice(shape.dim).dim_value = chance.choice(DIMS)


def change_shape(model, chance, files):
    """A value has no shape, or no rank, or one of very many dimensions."""
    tensor = _value(model, chance).type.tensor_type
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
    """A value has another element type."""
    kind = chance.choice([*range(28), 100, -1])
    _value(model, chance).type.tensor_type.elem_type = kind


def change_kind(model, chance, files):
    """A value is a sequence, a map, an optional, a sparse tensor, or nothing."""
    value = _value(model, chance)
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
    """An input has small other sizes, which the model may take."""
    inputs = [v for v in model.graph.input if v.type.tensor_type.shape.dim]
    if inputs:
        chance.choice(chance.choice(inputs).type.tensor_type.shape.dim).dim_value = chance.choice(
            [1, 2, 3, 4, 5, 6, 9, 16, 33]
        )
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")


# Attributes


def change_attribute(model, chance, files):
    """An attribute has another value of its type."""
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
        _spoil_tensor(attribute.t, chance)
    else:
        retype_attribute(model, chance, files)


def retype_attribute(model, chance, files):
    """An attribute is of another type, or says that it is."""
    node = _node(model, chance)
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
    """A node lacks an attribute, or has it twice."""
    node = _node(model, chance)
    if node.attribute:
        at = chance.randrange(len(node.attribute))
        if chance.random() < 0.7:
            del node.attribute[at]
        else:
            node.attribute.append(node.attribute[at])


def add_attribute(model, chance, files):
    """A node has an attribute more."""
    node, name = _node(model, chance), chance.choice(ATTRIBUTES)
    if chance.random() < 0.5:
        node.attribute.append(helper.make_attribute(name, chance.choice([-1, 0, 1, 2])))
    else:
        node.attribute.append(_attribute(name, model, chance))


def refer_attribute(model, chance, files):
    """An attribute refers to one of a function that is not there."""
    node = _node(model, chance)
    node.attribute.add(name=chance.choice(ATTRIBUTES), ref_attr_name="a", type=chance.randrange(15))


# Nodes and edges


def rewire(model, chance, files):
    """An input of a node is another value: earlier, later (a cycle), itself, or none."""
    node = _node(model, chance)
    if node.input:
        node.input[chance.randrange(len(node.input))] = (
            "" if chance.random() < 0.1 else _some_name(model, chance)
        )


def change_arity(model, chance, files):
    """A node has an input or output more, less, or the same one twice."""
    node = _node(model, chance)
    names = node.input if chance.random() < 0.7 else node.output
    kind = chance.randrange(4)
    if kind == 0 and names:
        del names[chance.randrange(len(names))]
    elif kind == 1:
        names.append(_some_name(model, chance))
    elif kind == 2 and names:
        names.append(names[0])
    else:
        del names[:]


def swap_inputs(model, chance, files):
    """Two inputs of a node change places."""
    node = _node(model, chance)
    if len(node.input) > 1:
        a, b = chance.sample(range(len(node.input)), 2)
        node.input[a], node.input[b] = node.input[b], node.input[a]


def change_operator(model, chance, files):
    """A node is another operator."""
    node = _node(model, chance)
    node.op_type = chance.choice(chance.choice([UNARY, BINARY, BINARY, STRANGE]))
    if chance.random() < 0.5:
        del node.attribute[:]


def change_domain(model, chance, files):
    """A node is of another domain, which the model may know."""
    domain = chance.choice(DOMAINS)
    _node(model, chance).domain = domain
    if chance.random() < 0.7:
        model.opset_import.add(domain=domain, version=chance.choice([1, 1, 2, 3, 100]))


def drop_node(model, chance, files):
    """A node is missing."""
    graph = _graph(model, chance)
    if graph.node:
        del graph.node[chance.randrange(len(graph.node))]


def repeat_node(model, chance, files):
    """A node is there twice, with the same outputs or with new ones."""
    graph = _graph(model, chance)
    if graph.node:
        node = graph.node.add()
        node.CopyFrom(chance.choice(graph.node[:-1]) if len(graph.node) > 1 else graph.node[0])
        if chance.random() < 0.5:
            for at, name in enumerate(node.output):
                node.output[at] = f"{name}_2"


def shuffle_nodes(model, chance, files):
    """The nodes are in another order."""
    graph = _graph(model, chance)
    nodes = list(graph.node)
    chance.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def insert_unary(model, chance, files):
    """Another operator between a value and those that use it."""
    name = chance.choice(_floats_of(model) or [_some_name(model, chance)])
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
    """An output more: an operator of two values of the model."""
    names = _floats_of(model) or [""]
    other = chance.choice([chance.choice(names), _some_name(model, chance)])
    node = helper.make_node(
        chance.choice(BINARY), [chance.choice(names), other], ["extra"], name="extra"
    )
    if chance.random() < 0.5 or node.op_type in ("Concat",):
        node.attribute.append(helper.make_attribute("axis", chance.choice([-2, -1, 0, 1, 2])))
    model.graph.node.append(node)
    model.graph.output.append(helper.make_empty_tensor_value_info("extra"))


def change_outputs(model, chance, files):
    """Other graph outputs: inner values, inputs, constants, one twice, none."""
    kind = chance.randrange(4)
    if kind == 0 and model.graph.output:
        del model.graph.output[chance.randrange(len(model.graph.output))]
    elif kind == 1 and model.graph.output:
        model.graph.output.append(model.graph.output[0])
    else:
        model.graph.output.append(helper.make_empty_tensor_value_info(_some_name(model, chance)))


def change_inputs(model, chance, files):
    """Other graph inputs: one less, one twice, an unused one, a constant that is an input."""
    kind = chance.randrange(4)
    inputs = model.graph.input
    if kind == 0 and inputs:
        del inputs[chance.randrange(len(inputs))]
    elif kind == 1 and inputs:
        inputs.append(inputs[0])
    elif kind == 2:
        inputs.append(helper.make_tensor_value_info("unused", chance.randrange(1, 13), [2]))
    else:
        tensor = _tensor(model, chance)
        kinds = (tensor.data_type or 1, list(tensor.dims))
        inputs.append(helper.make_tensor_value_info(tensor.name, *kinds))


# Constants


def _spoil_tensor(tensor, chance):
    kind = chance.randrange(10)
    raw = tensor.raw_data
    if kind == 0:
        tensor.raw_data = raw[: chance.randrange(len(raw) + 1)]
    elif kind == 1:
        tensor.raw_data = raw + b"\x00" * chance.choice([1, 4, 8, 1000])
    elif kind == 2:
        if tensor.dims:
            tensor.dims[chance.randrange(len(tensor.dims))] = chance.choice(DIMS)
        else:
            tensor.dims.append(chance.choice(DIMS))
    elif kind == 3:
        tensor.data_type = chance.choice([*range(28), 100, -1])
    elif kind == 4:
        tensor.ClearField("raw_data")
    elif kind == 5:
        tensor.float_data.extend([1.0, 2.0])
    elif kind == 6:
        tensor.string_data.extend([b"a", b"\xff"])
    elif kind == 7:
        del tensor.dims[:]
    elif kind == 8:
        tensor.segment.begin, tensor.segment.end = chance.choice(INTS), chance.choice(INTS)
    else:
        tensor.dims.append(1)


def spoil_tensor(model, chance, files):
    """A constant whose bytes, dimensions or type do not fit each other."""
    _spoil_tensor(_tensor(model, chance), chance)


def _decoded(tensor):
    """The array of a tensor; None where an earlier mutation has spoiled it."""
    try:
        return numpy_helper.to_array(tensor).copy()
    except Exception:  # onnx and NumPy raise many kinds
        return None


def change_numbers(model, chance, files):
    """A constant holds NaN, infinities, huge or subnormal numbers; an integer one any others."""
    tensor = _tensor(model, chance)
    array = _decoded(tensor)
    if array is None or not array.size:
        return
    flat = array.reshape(-1)
    at = slice(None) if chance.random() < 0.3 else chance.randrange(array.size)
    if array.dtype.kind == "f":
        flat[at] = chance.choice(FLOATS)
    elif array.dtype.kind in "iu":
        info = np.iinfo(array.dtype)
        value = chance.choice([-3, -2, -1, 0, 1, 2, 3, 4]) if chance.random() < 0.7 else (
            chance.choice(INTS)
        )  # fmt: skip
        flat[at] = min(max(value, info.min), info.max)
    elif array.dtype.kind == "b":
        flat[at] = not flat.flat[0]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def change_constant_shape(model, chance, files):
    """A constant of another shape that is consistent in itself."""
    tensor = _tensor(model, chance)
    array = _decoded(tensor)
    if array is None:
        return
    kind = chance.randrange(4)
    if kind == 0:
        array = np.expand_dims(array, 0)
    elif kind == 1:
        array = array.reshape(-1)
    elif kind == 2:
        array = array[:0] if array.ndim else array
    elif array.ndim:
        array = np.concatenate([array, array])
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def retype_constant(model, chance, files):
    """A constant of another element type, converted."""
    tensor = _tensor(model, chance)
    try:
        array = numpy_helper.to_array(tensor)
        kinds = ["f4", "f8", "f2", "i8", "i4", "i1", "u1", "u4", "u8", "i2", "?", "c8"]
        array = array.astype(chance.choice(kinds))
    except Exception:
        return
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def string_tensor(model, chance, files):
    """A constant of strings."""
    tensor = _tensor(model, chance)
    words = np.array([chance.choice(NAMES) for _ in range(3)], object)
    tensor.CopyFrom(numpy_helper.from_array(words, tensor.name))


def repeat_constant(model, chance, files):
    """A constant is there twice, or is missing."""
    tensors = _graph(model, chance).initializer
    if not tensors:
        return
    at = chance.randrange(len(tensors))
    if chance.random() < 0.5:
        tensors.append(tensors[at])
    else:
        del tensors[at]


def sparse_constant(model, chance, files):
    """A constant becomes a sparse one, right or wrong."""
    graph = model.graph
    tensors = [t for t in graph.initializer if t.data_type == TensorProto.FLOAT and t.dims]
    if not tensors:
        return
    tensor = chance.choice(tensors)
    array = _decoded(tensor)
    if array is None:
        return
    at = np.flatnonzero(array)
    sparse = onnx.SparseTensorProto(dims=array.shape)
    sparse.values.CopyFrom(numpy_helper.from_array(array.reshape(-1)[at], tensor.name))
    if chance.random() < 0.5:
        at = at + chance.choice([-1, 1, 10**6, -(2**40), 2**62])
    sparse.indices.CopyFrom(numpy_helper.from_array(at.astype(np.int64), "at"))
    if chance.random() < 0.3:
        sparse.dims[0] = chance.choice(DIMS)
    if chance.random() < 0.2:
        _make_external(sparse.values, chance, files)
    kept = [t for t in graph.initializer if t.name != tensor.name]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    graph.sparse_initializer.append(sparse)


def external(model, chance, files):
    """The bytes of a constant lie in a file, in a wrong place of it, or in none."""
    _make_external(_tensor(model, chance), chance, files)


def _make_external(tensor, chance, files):
    raw = tensor.raw_data
    name = chance.choice(["w.bin", "w.bin", "w.bin", "größe.bin", "a b"])
    files[name] = b"\0" * 8 + raw + b"\0" * 8
    keys = {"location": name, "offset": "8", "length": str(len(raw))}
    odd = ["", "-1", "0", "7", "x", "1e3", "0x10", str(2**31), str(2**63 - 1), str(2**64),
           "9" * 5000, "٣", "\x00", " 8 ", "nan"]  # fmt: skip
    kind = chance.randrange(8)
    if kind == 0:
        keys["offset"] = chance.choice(odd)
    elif kind == 1:
        keys["length"] = chance.choice(odd)
    elif kind == 2:
        keys["location"] = chance.choice(
            ["/etc/passwd", "../w.bin", "missing", ".", "", "a\0b", "x" * 5000, "./w.bin",
             "/dev/zero", "*/_ORT_MEM_ADDR_/*", "a\nb", "\x1b[2J", "w.bin/", "mutant.onnx"]
        )  # fmt: skip
    elif kind == 3:
        keys["checksum"] = chance.choice(["0" * 40, "x", "\x1b[31m"])
        keys["odd\nkey"] = "1"
    elif kind == 4:
        del keys[chance.choice(list(keys))]
    tensor.ClearField("raw_data")
    if kind == 5:
        tensor.raw_data = raw
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in keys.items():
        tensor.external_data.add(key=key, value=value)


# The model as a whole


def change_opset(model, chance, files):
    """Another version of the operators or of the format, or none, or two."""
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
    """Some node becomes a local function: right, recursive, missing or misleading."""
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
    if kind == 0:  # it calls itself
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
    """Nothing, or nearly nothing, is left of the graph."""
    fields = ["node", "input", "output", "initializer"]
    for field in chance.sample(fields, chance.randrange(1, 4)):
        del getattr(model.graph, field)[:]


def drop_bomb(model, chance, files):
    """A few nodes that ask for very much memory or time."""
    chance.choice(BOMBS)(model, chance)


def nothing(model, chance, files):
    """The model as it is: it must be right."""


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
