"""Load and call a compiled model; requires only NumPy, and TVM's runtime if it is not native."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tvmopt.compare import Tolerance, deviation
from tvmopt.errors import AccuracyError, ArtifactError, ConfigError
from tvmopt.runtime.bound import BoundCall
from tvmopt.runtime.bundle import golden_name
from tvmopt.runtime.callers import Callers, NativeCaller, TvmCaller
from tvmopt.runtime.categories import Categories
from tvmopt.runtime.checks import check_machine, check_version, open_checked, sealed_copy
from tvmopt.runtime.exact import ExactCalls
from tvmopt.runtime.metadata import GOLDEN_FILE, LIBRARY_FILE, ModelMetadata, TensorSpec
from tvmopt.runtime.outputs import Outputs
from tvmopt.runtime.rows import run_rows
from tvmopt.runtime.segments import require_onnxruntime
from tvmopt.runtime.sizes import SizePlanner


class CompiledModel:
    """A compiled model, ready to call; created by :func:`load`.

    Thread-safe (:mod:`.callers`).

    Args:
        library: The library, open, its hash checked.
        metadata: Metadata of the model.
    """

    def __init__(self, library: BinaryIO, metadata: ModelMetadata) -> None:
        self.metadata = metadata
        self._callers = Callers(library, metadata)
        self._caller = self._callers[0]
        self._dtypes = [np.dtype(spec.dtype) for spec in metadata.inputs]
        self._single = metadata.inputs[0].name if len(metadata.inputs) == 1 else None
        self._rows = metadata.inputs[0].shape[0] if metadata.any_rows else 0
        self._output_names = tuple(spec.name for spec in metadata.outputs)
        self._planner = _planner(metadata) if metadata.sizes else None
        self._input_categories, self._output_categories = (
            [Categories(spec.name, spec.categories) if spec.categories else None for spec in side]
            for side in (metadata.inputs, metadata.outputs)
        )
        self._exact = ExactCalls(metadata.inputs)
        self._may_be_exact = not any((*self._input_categories, *self._output_categories))
        if self._planner is None and self._may_be_exact:
            self._exact.add(tuple(spec.shape for spec in metadata.inputs), self._caller)

    def __call__(self, inputs: np.ndarray | Mapping[str, np.ndarray]) -> Outputs:
        """Run the model.

        Args:
            inputs: One array for a model with a single input, otherwise a dict by input name.
                Shapes must be compiled ones (``metadata.sizes``), but for what
                :mod:`tvmopt.runtime.sizes` divides or pads, such as the number of rows of a model
                that takes any (``metadata.any_rows``). dtypes are cast when no value can change.
                An input with categories takes strings, or their int64 codes.

        Returns:
            The outputs in the order of the ONNX graph, as new arrays; those with categories hold
            strings.

        Raises:
            ConfigError: When names, shapes or dtypes do not match, or a part that runs in ONNX
                Runtime refuses the values.
        """
        outputs = self._exact.run(inputs)
        return self._converted(inputs) if outputs is None else outputs

    def _converted(self, inputs: np.ndarray | Mapping[str, np.ndarray]) -> Outputs:
        """Run the model on inputs that need checks and conversions."""
        outputs = self.coded(inputs)
        for number, categories in enumerate(self._output_categories):
            if categories is not None:
                outputs[number] = categories.decode(outputs[number])
        return outputs

    def coded(self, inputs: np.ndarray | Mapping[str, np.ndarray]) -> Outputs:
        """Run the model as a call does, and return the codes of strings, as compiled code does."""
        arrays = self._arrays(inputs)
        if self._planner is not None:
            shapes = tuple(array.shape for array in arrays)
            size = self._planner.exact(shapes)
            if size is not None:
                caller = self._callers[size]
                if self._may_be_exact:  # the next inputs of these shapes find it at once
                    self._exact.add(shapes, caller)
                return caller.run(arrays)
            outputs = self._planner.run(self.run_size, arrays)
            return Outputs.of(outputs, self._output_names)
        if not self._rows or len(arrays[0]) == self._rows:
            return self._caller.run(arrays)
        outputs = run_rows(self._caller.run, arrays, self._rows, self.metadata.outputs)
        return Outputs.of(outputs, self._output_names)

    def bind(
        self,
        inputs: Mapping[str, np.ndarray] | None = None,
        outputs: Mapping[str, np.ndarray] | None = None,
        *,
        size: int = 0,
    ) -> BoundCall:
        """Bind the model to arrays, which each call reads and writes without a copy.

        Arrays of strings hold their codes, whose table is ``categories`` of the metadata.

        Calls of different threads run at once, each on its own arrays.

        Args:
            inputs: Arrays for some of the inputs, by name; the others are allocated. They start at
                cache lines, as :func:`tvmopt.runtime.aligned_empty` allocates them.
            outputs: The same for the outputs.
            size: Which of ``metadata.sizes``.

        Raises:
            ConfigError: When an array does not fit, there is no such size, or the model is not of
                native code.
        """
        if not isinstance(self._caller, NativeCaller):
            raise ConfigError(
                "bind must be called on a model of native code, but this one has sizes known at "
                "run time only, or is for a GPU; call the model instead"
            )
        if size not in range(max(1, len(self.metadata.sizes))):
            raise ConfigError(
                f"size must be the number of one of metadata.sizes, of which there are "
                f"{len(self.metadata.sizes)}, but got {size}"
            )
        return BoundCall(self._caller.executor, self.metadata, inputs, outputs, size)

    def gpu_seconds(self, calls: int = 1) -> float:
        """Return the mean seconds of back-to-back calls from GPU timestamps, on the current inputs.

        Raises:
            ConfigError: When the model is for a CPU.
        """
        if not self.metadata.gpu or not isinstance(self._caller, TvmCaller):
            raise ConfigError(f"the model must be for a GPU, but is for {self.metadata.device}")
        with self._caller.lock:
            return self._caller.network.seconds(calls)  # type: ignore[attr-defined]

    def check_golden(self, folder: Path) -> float:
        """Run the golden inputs of ``folder``; return the largest deviation of the outputs.

        A fallback must reproduce the golden outputs, too; and every size its own ones.

        Raises:
            AccuracyError: When an output deviates by more than the model's tolerance.
        """
        sizes = range(max(1, len(self.metadata.sizes)))
        return max(self._check_golden(folder, size) for size in sizes)

    def _check_golden(self, folder: Path, size: int) -> float:
        inputs, expected = read_golden(folder, self.metadata, size)
        arrays, caller = self._arrays(inputs), self._callers[size]
        worst = golden_deviation(caller.run(arrays), expected, self.metadata)
        if not caller.has_fallback:
            return worst
        direct = caller.run(arrays, direct=True)
        return max(worst, golden_deviation(direct, expected, self.metadata))

    def run_size(self, size: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of one of the sizes, by its own function.

        Args:
            size: Which of ``metadata.sizes``.
            arrays: The inputs in order, of the shapes of the size.
        """
        return self._callers[size].run(arrays)

    def _arrays(self, inputs: np.ndarray | Mapping[str, np.ndarray]) -> list[np.ndarray]:
        if not isinstance(inputs, Mapping):
            if self._single is None:
                names = ", ".join(spec.name for spec in self.metadata.inputs)
                raise ConfigError(
                    f"a model with several inputs must be given a dict by input name ({names}), "
                    f"but got {type(inputs).__name__}"
                )
            inputs = {self._single: inputs}
        arrays = []
        specs = zip(self.metadata.inputs, self._dtypes, self._input_categories, strict=True)
        for spec, dtype, categories in specs:
            if spec.name not in inputs:
                raise ConfigError(
                    f"inputs must hold {spec.name!r}, but got {', '.join(map(repr, inputs))}"
                )
            array = np.asarray(inputs[spec.name])
            if categories is not None:
                array = categories.encode(array)
            elif array.dtype != dtype:
                array = _cast(array, dtype, spec.name)
            if self._planner is not None:
                if array.ndim != len(spec.shape):
                    raise ConfigError(
                        f"input {spec.name!r} must have {len(spec.shape)} axes, but got shape "
                        f"{array.shape}"
                    )
            elif array.shape != spec.shape and not self._fits_by_rows(array, spec):
                raise ConfigError(
                    f"input {spec.name!r} must have shape {self._shape(spec)}, but got "
                    f"{array.shape}; the model was compiled for that shape"
                )
            arrays.append(array)
        if self._rows and self._planner is None and len({len(array) for array in arrays}) != 1:
            found = ", ".join(str(len(array)) for array in arrays)
            raise ConfigError(f"inputs must have as many rows each, but got {found}")
        if len(inputs) != len(arrays):
            unknown = sorted(set(inputs) - {spec.name for spec in self.metadata.inputs})
            raise ConfigError(f"inputs must be inputs of the model, but got also {unknown}")
        return arrays

    def _fits_by_rows(self, array: np.ndarray, spec: TensorSpec) -> bool:
        return bool(self._rows) and array.ndim > 0 and array.shape[1:] == spec.shape[1:]

    def _shape(self, spec: TensorSpec) -> str:
        """Return a shape for messages; any number of rows is ``n``."""
        return f"({', '.join(['n', *map(str, spec.shape[1:])])})" if self._rows else str(spec.shape)


def load(folder: str | Path, metadata_sha256: str | None = None) -> CompiledModel:
    """Load the compiled model of ``folder`` after all checks of :mod:`tvmopt.runtime.checks`.

    Args:
        folder: Folder with library, metadata and golden file.
        metadata_sha256: Expected hash of ``model.json``, hex; None skips the check.

    Raises:
        ArtifactError: When a check fails; the library is then not opened.
    """
    folder = Path(folder)
    metadata = ModelMetadata.read(folder, metadata_sha256)
    open_checked(folder / GOLDEN_FILE, metadata.golden_sha256).close()
    parts = metadata.library_parts
    with sealed_copy(folder / LIBRARY_FILE, metadata.library_sha256, parts) as library:
        check_version(metadata)
        check_machine(metadata)
        if metadata.segments:
            require_onnxruntime()
        return CompiledModel(library, metadata)


def golden_deviation(
    outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray], metadata: ModelMetadata
) -> float:
    """Return the largest deviation of ``outputs`` from the golden outputs ``expected``.

    Raises:
        AccuracyError: When an output deviates by more than the model's tolerance.
    """
    worst = 0.0
    outputs = Tolerance(metadata.tolerance, metadata.measure).in_order(outputs, expected)
    for spec, got, want in zip(metadata.outputs, outputs, expected, strict=True):
        error = deviation(got, want, metadata.measure)
        if not error <= metadata.tolerance:
            raise AccuracyError(
                f"output {spec.name!r} must equal the golden output within "
                f"{metadata.tolerance:g}, but deviates by {error:.3g}; do not deploy this "
                "model on this machine"
            )
        worst = max(worst, error)
    return worst


def _planner(metadata: ModelMetadata) -> SizePlanner:
    names = [spec.name for spec in metadata.inputs]
    return SizePlanner(names, metadata.sizes, metadata.dimensions, metadata.any_rows)


def read_golden(
    folder: Path, metadata: ModelMetadata, size: int = 0
) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Return golden inputs by name and golden outputs in order, of one of the sizes.

    Raises:
        ArtifactError: When the file is missing, changed, or lacks an input or output.
    """
    try:
        with (
            open_checked(folder / GOLDEN_FILE, metadata.golden_sha256) as file,
            np.load(file, allow_pickle=False) as data,
        ):
            of = {
                side: [data[golden_name(side, i, size)] for i in range(len(specs))]
                for side, specs in (("input", metadata.inputs), ("output", metadata.outputs))
            }
            inputs = dict(zip((spec.name for spec in metadata.inputs), of["input"], strict=True))
            outputs = of["output"]
    except (OSError, KeyError, ValueError) as error:
        raise ArtifactError(
            f"{GOLDEN_FILE} must hold every input and output, but it is damaged ({error})"
            "; build the model again"
        ) from error
    return inputs, outputs


def _cast(array: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    # JSON has neither float32 nor int32: values arrive as float64 or int64, and may be cast to the
    # same kind. Any other cast must be exact.
    if dtype.kind == "f" and array.dtype.kind in "fiu":
        return array.astype(dtype)
    if dtype.kind in "iu" and array.dtype.kind in "iub":
        cast = array.astype(dtype)
        if np.array_equal(cast, array):
            return cast
    if dtype.kind == "b" and array.dtype.kind == "b":
        return array
    raise ConfigError(f"input {name!r} must hold {dtype} values, but got {array.dtype}")
