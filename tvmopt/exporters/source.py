"""A model that MLflow saved, described by its ``MLmodel`` file; nothing is unpickled here."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.errors import ConfigError

#: Flavors that have an exporter.
FLAVORS = ("sklearn", "xgboost", "lightgbm", "pytorch")
_NUMBERS = {"double": "float64", "float": "float32", "long": "int64", "integer": "int32",
            "boolean": "bool"}  # fmt: skip
_TEXT = "string"


@dataclasses.dataclass(frozen=True)
class TableColumn:
    """A column of the source's signature: name, and NumPy dtype (``"object"`` for texts)."""

    name: str
    dtype: str

    @property
    def is_text(self) -> bool:
        """Return whether the column holds texts."""
        return self.dtype == "object"


@dataclasses.dataclass(frozen=True)
class InputTensor:
    """A tensor of the source's signature; -1 in the shape for any extent."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SourceModel:
    """Description of a saved model for an exporter.

    Attributes:
        uri: URI of the model, for messages and for the interface.
        flavor: One of ``FLAVORS``.
        file: The model's file or folder, relative to the saved model.
        format: How the file is written: ``"pickle"``, ``"cloudpickle"``, ``"skops"``, ``"pt2"``,
            or the library's own format.
        model_class: Class of the object, such as ``xgboost.sklearn.XGBClassifier``; may be empty.
        predict_fn: Method that ``predict`` of MLflow's generic flavor calls.
        signature: The signature in MLflow's JSON, or None.
        columns: Columns of the signature; empty if it has tensors.
        tensors: Tensors of the signature; empty if it has columns.
        trust: Whether the user trusts the file, so that it may be unpickled.
    """

    uri: str
    flavor: str
    file: str
    format: str
    model_class: str
    predict_fn: str
    signature: dict[str, Any] | None
    columns: tuple[TableColumn, ...]
    tensors: tuple[InputTensor, ...]
    trust: bool = False

    @property
    def is_wide(self) -> bool:
        """Return whether an input holds numbers of 64 bits, which float32 rounds."""
        names = [column.dtype for column in self.columns] + [one.dtype for one in self.tensors]
        kinds = map(np.dtype, names)
        return any(kind.kind in "iuf" and kind.itemsize == 8 for kind in kinds)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SourceModel:
        """Return what :meth:`to_dict` gave."""
        columns = tuple(TableColumn(**one) for one in data["columns"])
        tensors = tuple(
            InputTensor(one["name"], one["dtype"], tuple(one["shape"])) for one in data["tensors"]
        )
        return cls(**{**data, "columns": columns, "tensors": tensors})

    def path(self, folder: Path) -> Path:
        """Return the model's file in the saved model ``folder``.

        Raises:
            ConfigError: When it lies outside of the folder, or does not exist.
        """
        found = (folder / self.file).resolve()
        if not found.is_relative_to(folder.resolve()) or not found.exists():
            raise ConfigError(
                f"the model's file must lie inside the MLflow model, but {self.file!r} does not"
            )
        return found

    def require_trust(self, why: str) -> None:
        """Refuse to unpickle a file that the user has not said to trust.

        Raises:
            ConfigError: Without ``trust``.
        """
        if not self.trust:
            raise ConfigError(
                f"model {self.uri!r} must be trusted to be read: {why}, which can run any code; "
                "if you trust whoever logged it, add trust=true"
            )


def describe(
    uri: str, flavors: dict[str, Any], signature: dict[str, Any] | None, trust: bool
) -> SourceModel:
    """Return the description of a saved model.

    Args:
        uri: Its URI.
        flavors: The flavors of its ``MLmodel``.
        signature: The signature of its ``MLmodel``, or None.
        trust: Whether the user trusts its file.

    Raises:
        ConfigError: When it has no flavor that can be exported, or no signature.
    """
    flavor = next((one for one in FLAVORS if one in flavors), None)
    if flavor is None:
        raise ConfigError(
            f"model must have the flavor onnx, {', '.join(FLAVORS)}, but {uri!r} has "
            f"{', '.join(sorted(flavors))}"
        )
    own, generic = flavors[flavor], flavors.get("python_function", {})
    shapes_itself = flavor == "pytorch" and own.get("serialization_format") == "pt2"
    if not (signature and signature.get("inputs")) and not shapes_itself:
        raise ConfigError(
            f"model {uri!r} must have a signature, which gives names and types of its columns; log "
            "it with signature=mlflow.models.infer_signature(inputs, predictions)"
        )
    columns, tensors = _schema(uri, signature["inputs"]) if signature else ((), ())
    file = str(own.get("pickled_model") or own.get("data") or own.get("model_data") or "")
    return SourceModel(
        uri=uri,
        flavor=flavor,
        file=file,
        format=str(own.get("serialization_format") or own.get("model_format") or ""),
        model_class=str(own.get("model_class") or ""),
        predict_fn=str(generic.get("predict_fn") or "predict"),
        signature=signature,
        columns=columns,
        tensors=tensors,
        trust=trust,
    )


def _schema(uri: str, text: str) -> tuple[tuple[TableColumn, ...], tuple[InputTensor, ...]]:
    columns, tensors = [], []
    for number, entry in enumerate(json.loads(text)):
        kind, name = entry["type"], str(entry.get("name", ""))
        if kind == "tensor":
            spec = entry["tensor-spec"]
            dtype = np.dtype(spec["dtype"])
            if dtype.kind not in "biuf":
                raise ConfigError(
                    f"inputs of model {uri!r} must be numbers or texts in columns, but a tensor "
                    f"of its signature holds {dtype}"
                )
            shape = tuple(int(extent) for extent in spec["shape"])
            tensors.append(InputTensor(name or f"input_{number}", str(dtype), shape))
        elif kind in _NUMBERS or kind == _TEXT:
            columns.append(TableColumn(name, _NUMBERS.get(kind, "object")))
        else:
            raise ConfigError(
                f"columns of model {uri!r} must hold numbers or texts, but {name!r} holds {kind}; "
                "convert it before the model"
            )
    if columns and tensors:
        raise ConfigError(
            f"the signature of model {uri!r} must hold columns or tensors, not both"
            "; log the model with one of them"
        )
    names = [column.name for column in columns]
    if "" in names or len(set(names)) != len(names):
        raise ConfigError(
            f"every column in the signature of model {uri!r} must have a name of its own; log it "
            "with a pandas DataFrame as example"
        )
    return tuple(columns), tuple(tensors)
