"""Rewrite mappings of strings (LabelEncoder, CategoryMapper, Cast) as look-ups by code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.frontend.categories.attributes import default_string, label_values, strings_of, take
from tvmopt.frontend.categories.collect import refused
from tvmopt.frontend.categories.string_values import StringValues
from tvmopt.runtime.categories import UNKNOWN

_NUMBERS: dict[int, str] = {
    TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64",
    TensorProto.INT64: "int64", TensorProto.INT32: "int32",
}  # fmt: skip


class Mappings:
    """Rewrites the mappings of a graph, to which it adds the tables of look-ups.

    Args:
        graph: The graph.
        strings: Its string values.
    """

    def __init__(self, graph: onnx.GraphProto, strings: StringValues) -> None:
        self._graph, self._strings = graph, strings

    def label_encoder(
        self, node: onnx.NodeProto, attributes: Mapping[str, Any], source: str
    ) -> list[onnx.NodeProto]:
        """Return the nodes that take the place of a LabelEncoder.

        Args:
            node: The node.
            attributes: Its attributes.
            source: Its input if that holds strings, else empty.
        """
        texts = strings_of(attributes, "values")
        values, default = label_values(attributes)
        if texts is not None:
            codes = self._strings.codes(node.output[0], [*texts, default_string(attributes)])
            values, default = np.array(codes[:-1], "int64"), np.array(codes[-1], "int64")
        if source:
            keys = strings_of(attributes, "keys")
            if keys is None:
                keys = attributes.get("classes_strings")
                values = np.arange(len(keys or ()))
            return self._mapped(node, source, keys or (), values, default)
        if texts is not None:
            for name in ("values_strings", "values_tensor", "default_string", "default_tensor"):
                take(node, name)
            node.attribute.append(helper.make_attribute("values_int64s", values.tolist()))
            take(node, "default_int64")
            node.attribute.append(helper.make_attribute("default_int64", int(default)))
        return [node]

    def category_mapper(
        self, node: onnx.NodeProto, attributes: Mapping[str, Any], source: str
    ) -> list[onnx.NodeProto]:
        """Return the nodes that take the place of a CategoryMapper, as :meth:`label_encoder`."""
        texts, numbers = attributes["cats_strings"], list(attributes["cats_int64s"])
        if source:
            default = np.array(attributes.get("default_int64", -1))
            return self._mapped(node, source, texts, np.array(numbers, "int64"), default)
        codes = self._strings.codes(node.output[0], [*texts, default_string(attributes)])
        node.op_type = "LabelEncoder"
        del node.attribute[:]
        given = {"keys_int64s": numbers, "values_int64s": codes[:-1], "default_int64": codes[-1]}
        node.attribute.extend(helper.make_attribute(name, v) for name, v in given.items())
        return [node]

    def parsed(self, node: onnx.NodeProto, to: int, source: str) -> list[onnx.NodeProto]:
        """Return nodes that give the number that each string of a table spells.

        Raises:
            ModelError: When a string spells none.
        """
        try:
            numbers = [float(text) for text in self._strings.table(source)]
            table = np.array([0, *numbers, 0]).astype(_NUMBERS[to])
        except (ValueError, KeyError) as error:
            raise refused(node, "makes numbers of strings that are none") from error
        return self._looked_up(node, source, table)

    def _mapped(
        self, node: onnx.NodeProto, source: str, keys: Sequence[bytes | str], values: np.ndarray,
        default: np.ndarray,
    ) -> list[onnx.NodeProto]:  # fmt: skip
        """Return nodes that look codes up in a table; of equal keys, the first counts."""
        first: dict[int, Any] = {}
        for code, value in zip(self._strings.codes(source, keys), values, strict=True):
            first.setdefault(code, value)
        # Later strings of the same table have no entry: their codes get the default as well.
        size = max(first, default=-1) + 1
        table = np.array([default, *(first.get(code, default) for code in range(size)), default])
        return self._looked_up(node, source, table.astype(values.dtype))

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
