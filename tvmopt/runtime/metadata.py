"""Metadata of a compiled model, stored as ``model.json`` beside its library."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmopt import host
from tvmopt.compare import MEASURES
from tvmopt.errors import ArtifactError
from tvmopt.printable import is_printable
from tvmopt.runtime.categories import MOST_BYTES
from tvmopt.runtime.interface import SourceInterface
from tvmopt.runtime.sizes import HANDLINGS, CompiledSize, Shapes, SizeDimension

FORMAT = 1
#: Format of models with categories, which older versions of this package would not translate.
CATEGORIES_FORMAT = 2
METADATA_FILE = "model.json"
LIBRARY_FILE = "model.so"
GOLDEN_FILE = "golden.npz"
_KINDS: dict[str, type | tuple[type, ...]] = {
    "name": str, "target": dict, "host_cpu": str, "threads": int, "tvm_version": str,
    "tvmopt_version": str, "library_sha256": str, "golden_sha256": str, "digest": str,
    "tolerance": (int, float),
}  # fmt: skip
_TARGET_KINDS: dict[str, type | tuple[type, ...]] = {"isa": str, "mcpu": str, "cpu_flags": list}
_MOST_BYTES = 10_000_000
_GPU_KINDS: dict[str, type | tuple[type, ...]] = {"name": str, "sm": int}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    Attributes:
        name: Its name.
        shape: Its shape.
        dtype: NumPy name of the dtype that compiled code takes or gives.
        categories: Strings that the numbers stand for, which are int64 codes; else empty. Code 0 is
            the first one, and -1 any other string (:mod:`tvmopt.runtime.categories`).
        columns: Class of each column of an output that was a map of class to score; else empty.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    categories: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ModelMetadata:
    """Metadata that loading checks and calls require.

    Attributes:
        name: Name of the model.
        inputs: Inputs in the order of the ONNX graph.
        outputs: Outputs in the order of the ONNX graph.
        target: ``TargetSpec.to_dict()`` of the build target.
        host_cpu: Marketing name of the CPU that built it.
        threads: Number of threads that it was scheduled for and runs with.
        tvm_version: apache-tvm version that built it; the runtime must have the same.
        tvmopt_version: Version of this package that built it.
        library_sha256: Hash of the shared library, hex.
        golden_sha256: Hash of the golden inputs and outputs, hex.
        digest: Digest of the build stage; empty for builds outside the workflow.
        tolerance: Largest allowed deviation from the golden outputs.
        measure: Deviation measure, see :func:`tvmopt.compare.deviation`.
        instructions: Mnemonics of the tensor instructions in its kernels (``"vpdpbusd"``,
            ``"HGMMA"``); empty when there are none, or when an older version of this package built
            it.
        segments: Parts of the model that run in ONNX Runtime, which must then be installed.
        native: Whether the library is native code, which runs without TVM.
        any_rows: Whether the first axis of all inputs and outputs counts independent samples.
        sizes: Sizes that the library holds, the first as in ``inputs`` and ``outputs``; empty if
            there is no other.
        dimensions: Dimensions that differ between ``sizes``.
        interface: What the source model takes and returns; None if the source is an ONNX model.
        library_parts: Hash of each part of the library, hex, which loading checks on several cores
            (:mod:`tvmopt.runtime.parts`); empty when an older version of this package built it.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    target: dict[str, Any]
    host_cpu: str
    threads: int
    tvm_version: str
    tvmopt_version: str
    library_sha256: str
    golden_sha256: str
    digest: str
    tolerance: float
    measure: str = "max"
    instructions: tuple[str, ...] = ()
    segments: int = 0
    native: bool = False
    any_rows: bool = False
    library_parts: tuple[str, ...] = ()
    sizes: tuple[CompiledSize, ...] = ()
    dimensions: tuple[SizeDimension, ...] = ()
    interface: SourceInterface | None = None

    @property
    def gpu(self) -> str:
        """Name of its GPU, e.g. ``"nvidia-h200"``; empty for a CPU model."""
        return str((self.target.get("gpu") or {}).get("name", ""))

    @property
    def device(self) -> str:
        """Name of its GPU or CPU, e.g. ``"sapphirerapids"``."""
        return self.gpu or str(self.target["mcpu"])

    def at(self, size: int) -> ModelMetadata:
        """Return the metadata with the shapes of a size."""
        if not size:
            return self
        held = self.sizes[size]
        inputs, outputs = (
            tuple(
                dataclasses.replace(spec, shape=shape)
                for spec, shape in zip(specs, shapes, strict=True)
            )
            for specs, shapes in ((self.inputs, held.inputs), (self.outputs, held.outputs))
        )
        return dataclasses.replace(self, inputs=inputs, outputs=outputs)

    @property
    def open_inputs(self) -> tuple[TensorSpec, ...]:
        """Return the inputs, with -1 for extents that calls may choose."""
        return self._open(self.inputs, [size.inputs for size in self.sizes])

    @property
    def open_outputs(self) -> tuple[TensorSpec, ...]:
        """Return the outputs, with -1 for extents that depend on the call."""
        return self._open(self.outputs, [size.outputs for size in self.sizes])

    def _open(
        self, specs: tuple[TensorSpec, ...], sizes: Sequence[Shapes]
    ) -> tuple[TensorSpec, ...]:
        found = []
        for number, spec in enumerate(specs):
            shapes = [spec.shape, *(size[number] for size in sizes)]
            shape = [
                first if all(extent == first for extent in others) else -1
                for first, *others in zip(*shapes, strict=True)
            ]
            if self.any_rows:
                shape[0] = -1
            found.append(dataclasses.replace(spec, shape=tuple(shape)))
        return tuple(found)

    def write(self, folder: Path) -> None:
        """Write ``model.json`` into ``folder``."""
        has_categories = any(spec.categories for spec in (*self.inputs, *self.outputs))
        number = CATEGORIES_FORMAT if has_categories else FORMAT
        data = {"format": number, **dataclasses.asdict(self)}
        (folder / METADATA_FILE).write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")

    @classmethod
    def read(cls, folder: Path, sha256: str | None = None) -> ModelMetadata:
        """Read ``model.json`` of ``folder``.

        Args:
            folder: Folder of a compiled model.
            sha256: Expected hash of the file, hex; None skips the check.

        Raises:
            ArtifactError: When the file is missing, changed, damaged, or of another format.
        """
        path = folder / METADATA_FILE
        if not path.is_file():
            raise ArtifactError(
                f"a compiled model must be a folder with {METADATA_FILE}, but '{folder}' has none; "
                "give the folder that save_model or pull wrote"
            )
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise ArtifactError(
                f"{METADATA_FILE} must have at most {_MOST_BYTES} bytes, but '{path}' has {size}; "
                "fetch or build the model again"
            )
        content = path.read_bytes()
        found = hashlib.sha256(content).hexdigest()
        if sha256 not in (None, found):
            raise ArtifactError(
                f"{METADATA_FILE} must have sha256 {str(sha256)[:16]}..., but got {found[:16]}...: "
                "the model was changed after it was saved; fetch or build it again"
            )
        try:
            data = json.loads(content)
            formats = FORMAT, CATEGORIES_FORMAT
            if not isinstance(data, dict) or data.pop("format", None) not in formats:
                raise ValueError(f"format must be {FORMAT} or {CATEGORIES_FORMAT}")
            _check_kinds(data, _KINDS)
            _check_kinds(data["target"], _TARGET_KINDS)
            if data["target"].get("gpu"):
                _check_kinds(data["target"]["gpu"], _GPU_KINDS)
            for key in ("instructions", "library_parts"):
                texts = data.setdefault(key, [])
                if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
                    raise TypeError(f"{key} is {texts!r}")
                data[key] = tuple(texts)
            for side in ("inputs", "outputs"):
                if not isinstance(data[side], list):
                    raise TypeError(f"{side} is no list")
                data[side] = tuple(tensor_spec(tensor) for tensor in data[side])
            data["sizes"] = tuple(map(_compiled_size, data.get("sizes", ())))
            data["dimensions"] = tuple(map(size_dimension, data.get("dimensions", ())))
            if data.get("interface") is not None:
                data["interface"] = SourceInterface.from_dict(data["interface"])
            found_model = cls(**data)
            _check_values(found_model)
            return found_model
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            reason = ascii(str(error) or type(error).__name__)[1:-1][:200]
            raise ArtifactError(
                f"'{path}' must be the metadata of a compiled model, but it is damaged ({reason}); "
                "fetch or build the model again"
            ) from error


def tensor_spec(data: Any) -> TensorSpec:
    """Return an input or output from its JSON.

    Raises:
        ValueError, TypeError, KeyError: When it is damaged.
    """
    if not isinstance(data, dict):
        raise TypeError(f"a tensor is {data!r}")
    name, shape, dtype = data["name"], data["shape"], data["dtype"]
    if not isinstance(name, str) or not isinstance(dtype, str) or not isinstance(shape, list):
        raise TypeError(f"a tensor is {data!r}")
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"the shape of {name} is {shape}")
    categories, columns = (_texts(data.get(key, [])) for key in ("categories", "columns"))
    if categories and dtype != "int64":
        raise ValueError(f"codes of {name} are {dtype}")
    if len(set(categories)) != len(categories):
        raise ValueError(f"a category of {name} is there twice")
    if sum(len(text) for text in categories) > MOST_BYTES:
        raise ValueError(f"the categories of {name} have more than {MOST_BYTES} characters")
    return TensorSpec(name, tuple(shape), dtype, categories, columns)


def _texts(data: Any) -> tuple[str, ...]:
    if not isinstance(data, list) or not all(isinstance(text, str) for text in data):
        raise TypeError("categories or columns are no list of strings")
    return tuple(data)


def _compiled_size(data: dict[str, Any]) -> CompiledSize:
    inputs, outputs = (
        tuple(tuple(map(_whole, shape)) for shape in data[side]) for side in ("inputs", "outputs")
    )
    milliseconds = float(data["milliseconds"])
    if not 0 <= milliseconds < math.inf:
        raise ValueError(f"the time of a size is {milliseconds}")
    return CompiledSize(inputs, outputs, milliseconds)


def size_dimension(data: dict[str, Any]) -> SizeDimension:
    """Return a dimension from its JSON.

    Raises:
        ValueError, TypeError, KeyError: When it is damaged.
    """
    inputs, outputs = (
        tuple((_whole(position), _whole(axis)) for position, axis in data[side])
        for side in ("inputs", "outputs")
    )
    name, handling, reason = data["name"], data["handling"], data["reason"]
    if not is_printable(name) or not is_printable(reason) or handling not in HANDLINGS:
        raise ValueError(f"a dimension is {data!r}")
    return SizeDimension(name, inputs, outputs, handling, reason)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"an extent or position is {value!r}")
    return value


def _check_sizes(model: ModelMetadata) -> None:
    own = tuple(tuple(tensor.shape for tensor in side) for side in (model.inputs, model.outputs))
    if model.sizes and own != (model.sizes[0].inputs, model.sizes[0].outputs):
        raise ValueError("the first of sizes must be inputs and outputs")
    for size in model.sizes:
        for shapes, first in zip((size.inputs, size.outputs), own, strict=True):
            if [len(shape) for shape in shapes] != [len(shape) for shape in first]:
                raise ValueError("sizes must have as many axes each")
            if model.any_rows and any(shape[:1] == (0,) for shape in shapes):
                raise ValueError("any_rows needs rows in every size")
    for dimension in model.dimensions:
        for axes, first in zip((dimension.inputs, dimension.outputs), own, strict=True):
            if any(at >= len(first) or axis >= len(first[at]) for at, axis in axes):
                raise ValueError(f"dimension {dimension.name} has an axis that no tensor has")
        if not dimension.inputs:
            raise ValueError(f"dimension {dimension.name} has no axis")


def _check_values(model: ModelMetadata) -> None:
    _check_sizes(model)
    if type(model.threads) is not int or not 1 <= model.threads <= host.MOST_THREADS:
        raise ValueError(f"threads is {model.threads}")
    if isinstance(model.tolerance, bool) or not 0 <= model.tolerance < math.inf:
        raise ValueError(f"tolerance is {model.tolerance}")
    if type(model.segments) is not int or model.segments < 0:
        raise ValueError(f"segments is {model.segments!r}")
    for name in ("native", "any_rows"):
        if type(getattr(model, name)) is not bool:
            raise ValueError(f"{name} is {getattr(model, name)!r}")
    tensors = (*model.inputs, *model.outputs)
    if model.any_rows and (not tensors or {t.shape[:1] for t in tensors} & {(), (0,)}):
        raise ValueError("any_rows needs a first axis in every tensor")
    if model.any_rows and len({t.shape[0] for t in tensors}) != 1:
        raise ValueError("any_rows needs tensors of as many rows")
    if model.measure not in MEASURES:
        raise ValueError(f"measure is {model.measure!r}")
    texts = [model.name, model.host_cpu, model.tvm_version, model.tvmopt_version, model.device]
    for tensor in (*model.inputs, *model.outputs):
        texts += [tensor.name, tensor.dtype]
    for text in texts:
        if not is_printable(text):
            raise ValueError(f"{text!r} holds control characters")


def _check_kinds(data: dict[str, Any], kinds: dict[str, type | tuple[type, ...]]) -> None:
    for key, kind in kinds.items():
        if not isinstance(data[key], kind):
            raise TypeError(f"{key} is {data[key]!r}")
