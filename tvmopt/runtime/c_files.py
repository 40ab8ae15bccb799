"""Files for programs in C and C++ that run a native model: a loader, examples, a description."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tvmopt.runtime.metadata import GOLDEN_FILE, ModelMetadata

#: Description of the model that the loader in C reads.
DESCRIPTION_FILE = "model.txt"
#: Folder with sources, examples and golden tensors.
FOLDER = "c"
_SOURCES = Path(__file__).parent / "c"


def write_c_files(bundle: Path, metadata: ModelMetadata) -> None:
    """Add the files to a bundle with a native library.

    Args:
        bundle: Folder with library, metadata and golden file, which were checked.
        metadata: Its metadata.
    """
    (bundle / DESCRIPTION_FILE).write_text(description(metadata))
    golden = bundle / FOLDER / "golden"
    golden.mkdir(parents=True)
    for source in sorted(_SOURCES.iterdir()):
        shutil.copyfile(source, bundle / FOLDER / source.name)
    with np.load(bundle / GOLDEN_FILE, allow_pickle=False) as data:
        for name in data.files:
            np.ascontiguousarray(data[name]).tofile(golden / f"{name}.bin")


def description(metadata: ModelMetadata) -> str:
    """Return the text of ``model.txt``: a key and its value in each line.

    A tensor is ``input dtype rank extents name``; its name lasts to the end of the line. Each
    further size is ``size`` and the extents of all its tensors in turn.
    """
    lines = [
        "tvmopt 1",
        f"sha256 {metadata.library_sha256}",
        f"isa {metadata.target['isa']}",
        f"flags {' '.join(metadata.target['cpu_flags'])}",
    ]
    for side, tensors in (("input", metadata.inputs), ("output", metadata.outputs)):
        for tensor in tensors:
            extents = "".join(f"{extent} " for extent in tensor.shape)
            lines.append(f"{side} {tensor.dtype} {len(tensor.shape)} {extents}{tensor.name}")
    for size in metadata.sizes[1:]:
        every = [str(extent) for shape in (*size.inputs, *size.outputs) for extent in shape]
        lines.append(" ".join(["size", *every]))
    return "\n".join(lines) + "\n"
