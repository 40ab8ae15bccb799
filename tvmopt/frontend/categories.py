"""Rewrite a model with strings as one with codes: a code is the place in a table of categories.

before -> after::

    string input -> OneHotEncoder(cats_strings)      int64 input -> OneHotEncoder(cats_int64s)
    LinearClassifier(classlabels_strings)            LinearClassifier(classlabels_ints)
    scores -> ZipMap -> maps of class to score       scores

String values that are moved into each other or compared share one table, which holds every string
that the model knows of them. A string that is in no table has the code -1. The tables are metadata
of the new model, whose numbers a runtime translates (:mod:`tvmopt.runtime.categories`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.errors import ModelError
from tvmopt.frontend.external import graphs
from tvmopt.frontend.operator_sets import ML_DOMAIN, is_default
from tvmopt.runtime.categories import MOST_BYTES, UNKNOWN

_METADATA = "tvmopt.categories"
# Operators that move values, by the places of the inputs that hold them; None for all.
_MOVES: dict[str, Sequence[int] | None] = {
    "ArrayFeatureExtractor": (0,), "Concat": None, "Expand": (0,), "Flatten": (0,), "Gather": (0,),
    "GatherElements": (0,), "GatherND": (0,), "Identity": (0,), "Reshape": (0,), "Slice": (0,),
    "Split": (0,), "Squeeze": (0,), "Tile": (0,), "Transpose": (0,), "Unsqueeze": (0,),
    "Where": (1, 2),
}  # fmt: skip
_INTEGER_LABELS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
_NUMBERS: dict[int, str] = {
    TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64",
    TensorProto.INT64: "int64", TensorProto.INT32: "int32",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Tables:
    """What the numbers of a rewritten model mean.

    Attributes:
        inputs: Categories of inputs by name.
        outputs: Categories of outputs by name.
        columns: Class of each column of outputs that were maps, by name.
    """

    inputs: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    outputs: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs or self.columns)


def read_tables(model: onnx.ModelProto) -> Tables:
    """Return the tables of a model that :func:`without_strings` has rewritten; else empty ones."""
    for entry in model.metadata_props:
        if entry.key == _METADATA:
            sides = json.loads(entry.value)
            return Tables(
                **{
                    side: {name: tuple(table) for name, table in tables.items()}
                    for side, tables in sides.items()
                }
            )
    return Tables()


def without_strings(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with codes for strings, or ``model`` itself where it has none outside.

    A model whose inputs and outputs are numbers stays as it is, whatever is inside.

    Raises:
        ModelError: When strings are used otherwise than by mappings and comparisons; one line.
    """
    outside = (*model.graph.input, *model.graph.output)
    if not any(_is_foreign(value.type) for value in outside):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    columns = _drop_zip_maps(copy.graph)
    strings = _Strings(copy.graph)
    strings.rewrite()
    for entry in copy.opset_import:
        if entry.domain == ML_DOMAIN:
            entry.version = max(entry.version, 2)  # LabelEncoder from numbers to numbers
    sides = {"inputs": strings.tables(copy.graph.input), "columns": columns}
    sides["outputs"] = strings.tables(copy.graph.output)
    strings.declare_codes()
    if any(sides.values()):
        _require_small(sides)
        copy.metadata_props.add(key=_METADATA, value=json.dumps(sides))
    return copy


def _is_foreign(kind: onnx.TypeProto) -> bool:
    """Return whether a type is a string tensor, or maps of classes."""
    which = kind.WhichOneof("value")
    return which == "sequence_type" or kind.tensor_type.elem_type == TensorProto.STRING


def _require_small(sides: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
    size = sum(
        len(text.encode()) + 4
        for tables in sides.values()
        for table in tables.values()
        for text in table
    )
    if size > MOST_BYTES:
        raise ModelError(
            f"the categories of a model must have at most {MOST_BYTES} bytes, but have {size}; "
            "encode strings before the model"
        )


def _drop_zip_maps(graph: onnx.GraphProto) -> dict[str, list[str]]:
    """Replace each ZipMap by its scores; return the class of each column by output."""
    columns: dict[str, list[str]] = {}
    outputs = {value.name: value for value in graph.output}
    for node in graph.node:
        if node.op_type != "ZipMap" or node.domain != ML_DOMAIN:
            continue
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        classes = given.get("classlabels_strings") or given.get("classlabels_int64s") or ()
        columns[node.output[0]] = [_text(label) for label in classes]
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
        if node.output[0] in outputs:
            kind = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
            outputs[node.output[0]].type.CopyFrom(kind)
    return columns


def _text(value: bytes | str | int) -> str:
    """Return a string of the model.

    Raises:
        ModelError: When it is not UTF-8.
    """
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise ModelError(
            f"strings of a model must be UTF-8, but {value!r:.40} is not; export the model again"
        ) from error


class _Strings:
    """The string values of a graph, in groups that share a table.

    Args:
        graph: The graph, which :meth:`rewrite` changes.

    Raises:
        ModelError: When an operator uses strings that it must not.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._parents: dict[str, str] = {}
        self._vocabulary: dict[str, dict[str, int]] = {}
        self._from_call: set[str] = set()  # values that may be in no table
        self._outputs = {value.name for value in graph.output}
        self._collect()

    def tables(self, values: Iterable[onnx.ValueInfoProto]) -> dict[str, list[str]]:
        """Return the table of each value that is a string."""
        return {v.name: list(self._table(v.name)) for v in values if v.name in self._parents}

    def declare_codes(self) -> None:
        """Give inputs and outputs the type of codes, and forget the types of values inside."""
        for value in (*self._graph.input, *self._graph.output):
            if value.name in self._parents:
                value.type.tensor_type.elem_type = TensorProto.INT64
        kept = [v for v in self._graph.value_info if v.name not in self._parents]
        del self._graph.value_info[:]
        self._graph.value_info.extend(kept)

    def _add(self, name: str) -> None:
        self._parents.setdefault(name, name)

    def _root(self, name: str) -> str:
        while self._parents[name] != name:
            self._parents[name] = self._parents[self._parents[name]]
            name = self._parents[name]
        return name

    def _join(self, names: Sequence[str]) -> None:
        """Let values share one table."""
        for name in names:
            self._add(name)
        first = self._root(names[0])
        for name in names[1:]:
            self._parents[self._root(name)] = first

    def _table(self, name: str) -> dict[str, int]:
        return self._vocabulary.setdefault(self._root(name), {})

    def _codes(self, name: str, texts: Iterable[bytes | str]) -> list[int]:
        """Return the codes of strings in the table of a value, to which they are added."""
        table = self._table(name)
        return [table.setdefault(_text(text), len(table)) for text in texts]

    def _collect(self) -> None:
        """Find the string values and their groups."""
        for value in self._graph.input:
            if value.type.tensor_type.elem_type == TensorProto.STRING:
                self._add(value.name)
                self._from_call.add(value.name)
        for tensor in self._graph.initializer:
            if tensor.data_type == TensorProto.STRING:
                self._add(tensor.name)
                self._from_call.discard(tensor.name)
        for node in self._graph.node:
            self._collect_node(node)
        for name in self._outputs & self._from_call:
            raise ModelError(
                f"string outputs must come from tables of the model, but output {name!r} may hold "
                "any string of an input; remove it from the model"
            )

    def _collect_node(self, node: onnx.NodeProto) -> None:
        taken = [name for name in node.input if name in self._parents]
        op, attributes = node.op_type, _attributes(node)
        inner = {name for a in node.attribute if a.HasField("g") for name in _used(a.g)}
        if inner & self._parents.keys():
            raise self._refused(node)
        if op == "Constant" and is_default(node):
            if _constant_strings(attributes) is not None:
                self._add(node.output[0])
        elif op in _MOVES and taken:
            places = _MOVES[op]
            moved = taken if places is None else [node.input[at] for at in places]
            if set(moved) != set(taken):
                raise self._refused(node)
            self._join([*moved, *filter(None, node.output)])
            if self._from_call & set(moved):
                self._from_call.update(node.output)
        elif op == "Equal" and taken:
            if len(self._from_call & set(taken)) > 1:
                raise self._refused(node, "compares two strings of the call")
            self._join(taken)
        elif op == "Cast" and attributes.get("to") == TensorProto.STRING:
            if not taken:
                raise self._refused(node, "makes strings of numbers")
            self._join([*taken, *node.output])
            self._from_call.update(node.output if set(taken) & self._from_call else ())
        elif op == "Cast" and taken and self._from_call & set(taken):
            raise self._refused(node, "makes numbers of strings")
        elif _labels_are_strings(op, attributes):
            self._add(node.output[0])
        elif op == "LabelEncoder" and "classes_strings" in attributes and not taken:
            raise self._refused(node, "of version 1 makes strings of numbers")
        elif op == "CategoryMapper" and not taken:
            self._add(node.output[0])
        elif taken and op not in ("OneHotEncoder", "LabelEncoder", "CategoryMapper", "Cast"):
            raise self._refused(node)

    def _refused(self, node: onnx.NodeProto, why: str = "uses them otherwise") -> ModelError:
        return ModelError(
            "strings of a model must only be compared with its categories or mapped by them, but "
            f"{node.op_type} {node.name or node.output[0]!r} {why}; do this before the model, and "
            "export the model for numbers"
        )

    def rewrite(self) -> None:
        """Replace strings by codes; labels of classifiers come first in their tables."""
        for node in self._graph.node:
            if node.op_type in _INTEGER_LABELS:
                self._rewrite_labels(node)
        for tensor in self._graph.initializer:
            if tensor.data_type == TensorProto.STRING:
                self._rewrite_tensor(tensor, tensor.name)
        nodes: list[onnx.NodeProto] = []
        for node in self._graph.node:
            nodes.extend(self._rewritten(node))
        copies = []
        for node in nodes:
            copies.append(onnx.NodeProto())
            copies[-1].CopyFrom(node)
        del self._graph.node[:]
        self._graph.node.extend(copies)

    def _rewrite_labels(self, node: onnx.NodeProto) -> None:
        labels = _take(node, "classlabels_strings")
        if labels:
            _take(node, _INTEGER_LABELS[node.op_type])
            codes = self._codes(node.output[0], labels)
            node.attribute.append(helper.make_attribute(_INTEGER_LABELS[node.op_type], codes))

    def _rewrite_tensor(self, tensor: onnx.TensorProto, name: str) -> None:
        codes = np.array(self._codes(name, tensor.string_data), "int64")
        kept = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(codes.reshape(tuple(tensor.dims)), kept))

    def _rewritten(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes that take the place of a node."""
        op, attributes = node.op_type, _attributes(node)
        source = node.input[0] if node.input else ""
        is_string = source in self._parents
        if op == "Constant" and is_default(node) and node.output[0] in self._parents:
            texts = _constant_strings(attributes)
            assert texts is not None
            codes = np.array(self._codes(node.output[0], texts.ravel().tolist()), "int64")
            tensor = numpy_helper.from_array(codes.reshape(texts.shape))
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("value", tensor))
        elif op == "OneHotEncoder" and is_string:
            codes_ = self._codes(source, _take(node, "cats_strings"))
            node.attribute.append(helper.make_attribute("cats_int64s", codes_))
        elif op == "LabelEncoder":
            return self._label_encoder(node, attributes, source if is_string else "")
        elif op == "CategoryMapper":
            return self._category_mapper(node, attributes, source if is_string else "")
        elif op == "Cast" and is_string:
            if attributes["to"] == TensorProto.STRING:
                node.op_type = "Identity"
                del node.attribute[:]
                return [node]
            return self._parsed(node, attributes["to"], source)
        return [node]

    def _label_encoder(
        self, node: onnx.NodeProto, attributes: Mapping[str, Any], source: str
    ) -> list[onnx.NodeProto]:
        """Map strings by a table, and numbers to codes."""
        texts = _strings_of(attributes, "values")
        values, default = _label_values(attributes)
        if texts is not None:
            codes = self._codes(node.output[0], [*texts, _default_string(attributes)])
            values, default = np.array(codes[:-1], "int64"), np.array(codes[-1], "int64")
        if source:
            keys = _strings_of(attributes, "keys")
            if keys is None:
                keys = attributes.get("classes_strings")
                values = np.arange(len(keys or ()))
            return self._mapped(node, source, keys or (), values, default)
        if texts is not None:
            for name in ("values_strings", "values_tensor", "default_string", "default_tensor"):
                _take(node, name)
            node.attribute.append(helper.make_attribute("values_int64s", values.tolist()))
            _take(node, "default_int64")
            node.attribute.append(helper.make_attribute("default_int64", int(default)))
        return [node]

    def _category_mapper(
        self, node: onnx.NodeProto, attributes: Mapping[str, Any], source: str
    ) -> list[onnx.NodeProto]:
        texts, numbers = attributes["cats_strings"], list(attributes["cats_int64s"])
        if source:
            default = np.array(attributes.get("default_int64", -1))
            return self._mapped(node, source, texts, np.array(numbers, "int64"), default)
        codes = self._codes(node.output[0], [*texts, _default_string(attributes)])
        node.op_type = "LabelEncoder"
        del node.attribute[:]
        given = {"keys_int64s": numbers, "values_int64s": codes[:-1], "default_int64": codes[-1]}
        node.attribute.extend(helper.make_attribute(name, v) for name, v in given.items())
        return [node]

    def _mapped(
        self, node: onnx.NodeProto, source: str, keys: Sequence[bytes | str], values: np.ndarray,
        default: np.ndarray,
    ) -> list[onnx.NodeProto]:  # fmt: skip
        """Return nodes that look codes up in a table; of equal keys, the first counts."""
        first: dict[int, Any] = {}
        for code, value in zip(self._codes(source, keys), values, strict=True):
            first.setdefault(code, value)
        # Later strings of the same table have no entry: their codes get the default as well.
        size = max(first, default=-1) + 1
        table = np.array([default, *(first.get(code, default) for code in range(size)), default])
        return self._looked_up(node, source, table.astype(values.dtype))

    def _parsed(self, node: onnx.NodeProto, to: int, source: str) -> list[onnx.NodeProto]:
        """Return nodes that give the number that each string of a table spells."""
        try:
            numbers = [float(text) for text in self._table(source)]
            table = np.array([0, *numbers, 0]).astype(_NUMBERS[to])
        except (ValueError, KeyError) as error:
            raise self._refused(node, "makes numbers of strings that are none") from error
        return self._looked_up(node, source, table)

    def _looked_up(
        self, node: onnx.NodeProto, source: str, table: np.ndarray
    ) -> list[onnx.NodeProto]:
        """Return nodes that give ``table[code + 1]``; a larger code has the last entry."""
        prefix = f"{node.output[0]}/codes"
        parts = {"one": np.array(-UNKNOWN), "last": np.array(len(table) - 1), "table": table}
        for name, array in parts.items():
            self._graph.initializer.append(numpy_helper.from_array(array, f"{prefix}/{name}"))
        return [
            helper.make_node("Add", [source, f"{prefix}/one"], [f"{prefix}/place"]),
            helper.make_node("Min", [f"{prefix}/place", f"{prefix}/last"], [f"{prefix}/within"]),
            helper.make_node(
                "Gather", [f"{prefix}/table", f"{prefix}/within"], [node.output[0]], name=node.name
            ),
        ]


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _labels_are_strings(op: str, attributes: Mapping[str, Any]) -> bool:
    """Return whether the first output of a classifier or a LabelEncoder is strings."""
    if op == "LabelEncoder":
        return _strings_of(attributes, "values") is not None
    return op in _INTEGER_LABELS and bool(attributes.get("classlabels_strings"))


def _take(node: onnx.NodeProto, name: str) -> Any:
    """Remove an attribute, and return its value; None without it."""
    for place, attribute in enumerate(node.attribute):
        if attribute.name == name:
            value = helper.get_attribute_value(attribute)
            del node.attribute[place]
            return value
    return None


def _used(graph: onnx.GraphProto) -> set[str]:
    """Return the names that the nodes of a subgraph use."""
    return {name for each in graphs(graph) for node in each.node for name in node.input}


def _constant_strings(attributes: Mapping[str, Any]) -> np.ndarray | None:
    """Return the strings of a Constant; None of a numeric one."""
    if "value_string" in attributes:
        return np.array(attributes["value_string"], object)
    if "value_strings" in attributes:
        return np.array(attributes["value_strings"], object)
    tensor = attributes.get("value")
    if isinstance(tensor, onnx.TensorProto) and tensor.data_type == TensorProto.STRING:
        return np.array(list(tensor.string_data), object).reshape(tuple(tensor.dims))
    return None


def _strings_of(attributes: Mapping[str, Any], side: str) -> Sequence[bytes] | None:
    """Return the keys or the values of a LabelEncoder that are strings; None of numbers."""
    if attributes.get(f"{side}_strings"):
        return list(attributes[f"{side}_strings"])
    tensor = attributes.get(f"{side}_tensor")
    if tensor is not None and tensor.data_type == TensorProto.STRING:
        return list(tensor.string_data)
    return None


def _default_string(attributes: Mapping[str, Any]) -> bytes | str:
    tensor = attributes.get("default_tensor")
    if tensor is not None and tensor.data_type == TensorProto.STRING:
        return tensor.string_data[0]
    return attributes.get("default_string", b"_Unused")


def _label_values(attributes: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numeric values of a LabelEncoder, and the default."""
    tensor = attributes.get("values_tensor")
    if tensor is not None and tensor.data_type != TensorProto.STRING:
        values = numpy_helper.to_array(tensor).reshape(-1)
    elif attributes.get("values_floats"):
        values = np.array(attributes["values_floats"], "float32")
    else:
        values = np.array(attributes.get("values_int64s") or (), "int64")
    given = attributes.get("default_tensor")
    if given is not None and given.data_type != TensorProto.STRING:
        default = numpy_helper.to_array(given).reshape(-1)[0]
    elif values.dtype.kind == "f":
        default = np.float32(attributes.get("default_float", -0.0))
    else:
        default = np.int64(attributes.get("default_int64", -1))
    return values, np.array(default, values.dtype)
