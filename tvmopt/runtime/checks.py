"""Checks before a library is opened: hash, TVM version, CPU, GPU, and permissions of Linux.

Opening a library executes its code. The library is therefore copied into sealed memory and hashed
there, so that nobody can exchange or overwrite it between check and use.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Sequence
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import BinaryIO

from tvmopt import host
from tvmopt.device import cuda_runtime
from tvmopt.errors import ArtifactError, EnvironmentSetupError
from tvmopt.runtime.metadata import GOLDEN_FILE, LIBRARY_FILE, ModelMetadata
from tvmopt.runtime.parts import part_hashes
from tvmopt.versions import tvm_version

_AMX = ("tile", "tdp", "ldtilecfg")
_COPY_BYTES = 1 << 30
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def check_files(folder: Path, metadata: ModelMetadata) -> None:
    """Reject a compiled model that is damaged or built with another TVM version.

    Raises:
        ArtifactError: When a check fails.
    """
    for name, expected in (
        (LIBRARY_FILE, metadata.library_sha256),
        (GOLDEN_FILE, metadata.golden_sha256),
    ):
        open_checked(folder / name, expected).close()
    check_version(metadata)


def check_version(metadata: ModelMetadata) -> None:
    """Reject a compiled model that needs another TVM version.

    Raises:
        ArtifactError: When the versions differ; names both.
    """
    if metadata.native:
        return
    version = tvm_version()
    if version != metadata.tvm_version:
        raise ArtifactError(
            f"the model must run on the apache-tvm that built it, {metadata.tvm_version}, "
            f'but got {version}; run: pip install "apache-tvm=={metadata.tvm_version}", '
            "or build the model again"
        )


def check_machine(metadata: ModelMetadata) -> None:
    """Reject a compiled model that cannot run on this machine.

    Raises:
        ArtifactError: When the machine lacks a required feature; names it.
    """
    if metadata.target["isa"] != host.isa():
        raise ArtifactError(
            f"the model was built for {metadata.target['isa']} ({metadata.target['mcpu']}), but "
            f"this machine is {host.isa()}; build it again with target=host on this machine"
        )
    missing = sorted(set(metadata.target["cpu_flags"]) - host.cpu_flags())
    if missing:
        raise ArtifactError(
            f"the model was built for {metadata.target['mcpu']}, and this CPU ({host.cpu_model()}) "
            f"lacks {', '.join(missing)}; build it again with target=host on this machine"
        )
    _request_amx(metadata)
    if metadata.gpu:
        _check_gpu(metadata.gpu, metadata.target["gpu"]["sm"])


def _check_gpu(name: str, sm: int) -> None:
    lacking = cuda_runtime.missing(sm)
    if not lacking:
        return
    import tvm

    if problem := cuda_runtime.problem():
        here = problem
    else:
        device = tvm.runtime.cuda(0)
        here = f"this machine's is {device.device_name}, of {device.compute_version}"
    cure = "" if cuda_runtime.CURE in here else "; build it again for what this machine has"
    raise ArtifactError(
        f"the model was built for {name}, a GPU of compute capability {sm // 10}.{sm % 10}, but "
        f"{here}{cure}"
    )


def _request_amx(metadata: ModelMetadata) -> None:
    granted = host.request_amx(metadata.target["cpu_flags"])
    used = [name for name in metadata.instructions if name.startswith(_AMX)]
    if used and not granted:
        raise ArtifactError(
            f"the model uses AMX ({', '.join(used)}), which Linux must permit to this process, but "
            "it refused; run it on Linux 5.16 or newer, outside a sandbox that blocks arch_prctl, "
            "or build it again for a target without AMX"
        )


def open_checked(path: Path, expected: str) -> BinaryIO:
    """Open a file of a compiled model whose content has the hash ``expected``.

    Args:
        path: The file.
        expected: sha256 of its content, hex.

    Returns:
        The open file at position 0. Read through this object only: the path may name another file
        by now.

    Raises:
        ArtifactError: When the file is missing or its content has another hash.
    """
    file = _open(path)
    _check_hash(file, path.name, expected)
    return file


def sealed_copy(path: Path, expected: str, parts: Sequence[str] = ()) -> BinaryIO:
    """Copy a file whose content has the hash ``expected`` into memory sealed against writes.

    The copy is a sealed memfd (Linux), hashed after sealing. A writer of ``path`` cannot change it.

    Args:
        path: The file.
        expected: sha256 of its content, hex.
        parts: sha256 of each part of its content, hex, which are then checked instead, on several
            cores.

    Returns:
        The copy, open at position 0. Its memory is freed once it is closed and unmapped.

    Raises:
        ArtifactError: When the file is missing or its content has another hash.
        EnvironmentSetupError: When the system lacks memory or refuses a memfd.
    """
    with _open(path) as source:
        try:
            number = os.memfd_create(path.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            copy = os.fdopen(number, "w+b")
            while os.sendfile(number, source.fileno(), None, _COPY_BYTES):
                pass
            fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            raise EnvironmentSetupError(
                f"{path.name} must be copied into sealed memory (memfd) before it is opened, but "
                f"the system refused: {error.strerror}; free memory, or permit memfd_create"
            ) from error
    copy.seek(0)
    if not parts:
        _check_hash(copy, path.name, expected)
    elif part_hashes(number) != tuple(parts):
        copy.close()
        raise _wrong_hash(path.name, expected, "another one")
    return copy


def _open(path: Path) -> BufferedReader:
    if not path.is_file():
        raise ArtifactError(
            f"a compiled model must hold {path.name}, but '{path.parent}' does not; "
            "fetch or build the model again"
        )
    return path.open("rb")


def _check_hash(file: BufferedReader | BufferedRandom, name: str, expected: str) -> None:
    """Leave ``file`` at position 0, or close it and raise :class:`ArtifactError`."""
    actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        file.close()
        raise _wrong_hash(name, expected, f"{actual[:16]}...")
    file.seek(0)


def _wrong_hash(name: str, expected: str, actual: str) -> ArtifactError:
    return ArtifactError(
        f"{name} must have sha256 {expected[:16]}..., but got {actual}: the file was changed or "
        "damaged after it was built; fetch or build the model again"
    )
