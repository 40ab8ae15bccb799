"""RemoteModel: upload a compiled model to a board, then call, check and time it there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.errors import TVM_ERRORS, ArtifactError, last_line
from tvmopt.runtime.checks import check_version, open_checked
from tvmopt.runtime.executor import MAIN, RemoteNative, RemoteVirtualMachine
from tvmopt.runtime.metadata import LIBRARY_FILE, ModelMetadata
from tvmopt.runtime.model import golden_deviation, read_golden
from tvmopt.runtime.outputs import Outputs


class RemoteModel:
    """The model of a bundle, uploaded into a session on a board.

    Args:
        session: A session from :func:`tvmopt.remote.session.open_session`.
        folder: Directory of the bundle.
        name: Name of the model, unique within the session.

    Raises:
        ArtifactError: When the bundle is damaged, or the board refuses its library.
    """

    def __init__(self, session: Any, folder: Path, name: str = "model") -> None:
        self.metadata = ModelMetadata.read(folder)
        check_version(self.metadata)
        self._session = session
        self._device = session.cpu()
        session.get_function("runtime.config_threadpool")(1, self.metadata.threads)
        with open_checked(folder / LIBRARY_FILE, self.metadata.library_sha256) as library:
            hashed = Path(f"/proc/self/fd/{library.fileno()}")  # the path may be another file now
            module = upload_library(session, hashed, f"{name}.so")
        self._executor: RemoteNative | RemoteVirtualMachine
        if self.metadata.native:
            self._executor = RemoteNative(module, self._device, self.metadata.outputs)
        else:
            self._executor = RemoteVirtualMachine(module, self._device)
        self._names = tuple(spec.name for spec in self.metadata.outputs)

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Outputs:
        """Return the outputs in the order of the ONNX graph."""
        run = self._executor.bind(MAIN, self._tensors(inputs))
        return Outputs.of([self._executor.read(tensor) for tensor in run()], self._names)

    def check_golden(self, folder: Path) -> float:
        """Run the golden inputs of ``folder`` on the board; return the largest deviation.

        Raises:
            AccuracyError: When an output deviates by more than the model's tolerance.
        """
        inputs, expected = read_golden(folder, self.metadata)
        return golden_deviation(self(inputs), expected, self.metadata)

    def time(self, inputs: Mapping[str, np.ndarray], repeats: int) -> list[float]:
        """Return the seconds of ``repeats`` calls by the board's clock, after a warm-up call.

        Inputs and outputs are not transferred in between.
        """
        tensors = self._tensors(inputs)
        self._executor.bind(MAIN, tensors)()
        return self._executor.seconds(tensors, repeats)

    def _tensors(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Return the inputs as tensors on the board."""
        arrays = (
            np.asarray(inputs[spec.name]).astype(spec.dtype, copy=False)
            for spec in self.metadata.inputs
        )
        return [self._executor.tensor(array) for array in arrays]


def upload_library(session: Any, path: Path, name: str) -> Any:
    """Upload a library as ``name`` and return its module.

    Raises:
        ArtifactError: When the board cannot load it.
    """
    session.upload(str(path), name)
    try:
        return session.load_module(name)
    except TVM_ERRORS as error:
        if "expired" in str(error):
            raise
        raise ArtifactError(
            f"the board must load the library, but it refused it ({last_line(error)}); "
            "check that target names the board's CPU"
        ) from error


def describe(session: Any) -> str:
    """Return the board's CPU and platform; empty when it has only TVM's runtime, without LLVM."""
    said = []
    for name in ("target.llvm_get_system_cpu", "target.llvm_get_system_triple"):
        with contextlib.suppress(*TVM_ERRORS):
            said.append(str(session.get_function(name)()))
    return ", ".join(said)
