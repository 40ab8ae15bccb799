"""Outputs of the float model that earlier stages of the same command have computed.

Each trial of a search compares its model with the float model on the same samples, where ONNX
Runtime takes more time than the compiled model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tvmopt import command_cache
from tvmopt.stages.float_session import FloatModelCall

# Of outputs that one stage keeps.
_MOST_BYTES = 2**28


def with_kept_outputs(compute: FloatModelCall, model_digest: str) -> FloatModelCall:
    """Return ``compute``, which is not called again for equal inputs within a command.

    Args:
        compute: Computes the outputs of the float model; for accuracy, not to be timed.
        model_digest: sha256 of its file.
    """
    folder = command_cache.folder("float-outputs")
    if folder is None:
        return compute
    left = _MOST_BYTES

    def outputs(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        nonlocal left
        path = folder / f"{_digest(model_digest, inputs)}.npz"
        if (known := _read(path)) is not None:
            return known
        found = compute(inputs)
        size = sum(output.nbytes for output in found)
        if size <= left and not any(output.dtype.hasobject for output in found):
            left -= size
            with command_cache.whole_file(path) as new, new.open("wb") as file:
                np.savez(file, *found)
        return found

    return outputs


def _digest(model_digest: str, inputs: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(model_digest.encode())
    for name, array in sorted(inputs.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _read(path: Path) -> list[np.ndarray] | None:
    try:
        with np.load(path, allow_pickle=False) as found:
            return [found[f"arr_{number}"] for number in range(len(found.files))]
    except FileNotFoundError:
        return None
