"""Library that the convert stage compiles for its check, and later stages take over.

Without tuning records the build stage would compile the same module in the same way, to the same
bytes: half of a trial's time. The tune stage takes over the lowered module, without its weights.
Both lie in the convert stage's output, so that the manifest of hashes and the signature of that
output cover them.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import tvm

from tvmopt.build import BuiltLibrary
from tvmopt.device.target import TargetSpec
from tvmopt.digest import sha256_file
from tvmopt.errors import ArtifactError
from tvmopt.kernels.saved import load_saved
from tvmopt.transform.constants import split_constants

FOLDER = "check"
LIBRARY, FACTS, LOWERED = "library.so", "library.json", "lowered.json"


@dataclasses.dataclass(frozen=True)
class KeptLibrary:
    """A library with default schedules, for one size of a model.

    Attributes:
        built: What :func:`tvmopt.build.build_library` returned.
        target: ``TargetSpec.to_dict()`` that it was compiled for.
        sha256: Of the library.
        segments: Number of segments that ONNX Runtime runs.
        lowered_path: The lowered module that was compiled.
    """

    built: BuiltLibrary
    target: dict[str, Any]
    sha256: str
    segments: int
    lowered_path: Path

    def lowered(self) -> tvm.IRModule:
        """Return the lowered module; its weights are parameters of ``main``."""
        return load_saved(self.lowered_path.read_text())

    def copy_to(self, path: Path) -> BuiltLibrary:
        """Copy the library to ``path``; return what is known of it.

        Raises:
            ArtifactError: When its content has changed.
        """
        shutil.copyfile(self.built.path, path)
        if (found := sha256_file(path)) != self.sha256:
            raise ArtifactError(
                f"'{self.built.path}' must have sha256 {self.sha256}, but has {found}; run the "
                "convert stage again, with no_cache=true"
            )
        return dataclasses.replace(self.built, path=path)


def path_in(convert_dir: Path) -> Path:
    """Return the path of the library in a convert stage's output."""
    return convert_dir / FOLDER / LIBRARY


def keep(
    convert_dir: Path,
    built: BuiltLibrary,
    target: TargetSpec,
    segments: int,
    lowered: tvm.IRModule,
) -> None:
    """Describe the library at :func:`path_in`, compiled from ``lowered``, in files beside it."""
    facts = {
        "built": {**dataclasses.asdict(built), "path": LIBRARY},
        "target": target.to_dict(),
        "sha256": sha256_file(built.path),
        "segments": segments,
    }
    folder = convert_dir / FOLDER
    (folder / LOWERED).write_text(tvm.ir.save_json(split_constants(lowered)[0]))
    (folder / FACTS).write_text(json.dumps(facts, indent=2, sort_keys=True))


def find(convert_dir: Path, target: TargetSpec) -> KeptLibrary | None:
    """Return the library that is kept for a target; None when there is none."""
    folder = convert_dir / FOLDER
    if not (folder / FACTS).is_file():
        return None
    facts = json.loads((folder / FACTS).read_text())
    if facts["target"] != json.loads(json.dumps(target.to_dict())):
        return None
    built = facts["built"]
    built["path"] = folder / LIBRARY
    built["instructions"] = {name: tuple(used) for name, used in built["instructions"].items()}
    return KeptLibrary(
        BuiltLibrary(**built),
        facts["target"],
        facts["sha256"],
        int(facts["segments"]),
        folder / LOWERED,
    )
