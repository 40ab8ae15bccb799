"""Object files that are linked with each library: its runtime, and an ONNX Runtime operator."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from tvmopt.link import compile_objects
from tvmopt.scratch import scratch_folder

_FOLDER = Path(__file__).parent / "native"
_FILES = (
    "runtime.c", "thread_count.c", "core_of_thread.c", "workspace.c", "segments.c", "onnxruntime.c",
)  # fmt: skip


def write_objects(command: Sequence[str], folder: Path) -> list[Path]:
    """Write the object files into ``folder``; return their paths.

    They depend on no model, so each compiler compiles them once in a process, and the fork server
    does so for its children.

    Args:
        command: Start of the compiler's command, of :func:`tvmopt.link.compile_command`.
        folder: Folder to write into.

    Raises:
        BuildError: When they do not compile.
    """
    paths = []
    for name, content in compiled_objects(tuple(command)).items():
        path = folder / name
        path.write_bytes(content)
        paths.append(path)
    return paths


@functools.cache
def compiled_objects(command: tuple[str, ...]) -> dict[str, bytes]:
    """Return the object files of one compiler by name."""
    with scratch_folder() as folder:
        objects = compile_objects(command, [_FOLDER / name for name in _FILES], folder)
        return {path.name: path.read_bytes() for path in objects}
