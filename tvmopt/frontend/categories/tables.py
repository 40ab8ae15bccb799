"""Tables of categories in the metadata of an ONNX model: what the codes of its tensors mean."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import onnx

from tvmopt.errors import ModelError
from tvmopt.runtime.categories import MOST_BYTES

_METADATA = "tvmopt.categories"


@dataclasses.dataclass(frozen=True)
class Tables:
    """Meaning of the numbers of a rewritten model.

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
    """Return the tables in the metadata of a model; empty ones without."""
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


def write_tables(model: onnx.ModelProto, tables: Tables) -> None:
    """Add the tables to the metadata of a model, unless they are empty.

    Raises:
        ModelError: When they have more than ``MOST_BYTES`` bytes.
    """
    if not tables:
        return
    sides = (tables.inputs, tables.outputs, tables.columns)
    size = sum(
        len(word.encode()) + 4 for side in sides for table in side.values() for word in table
    )
    if size > MOST_BYTES:
        raise ModelError(
            f"the categories of a model must have at most {MOST_BYTES} bytes, but have {size}; "
            "encode strings before the model"
        )
    model.metadata_props.add(key=_METADATA, value=json.dumps(dataclasses.asdict(tables)))
